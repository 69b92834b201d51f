// The page of one text.
import { boot } from "./boot.js";
import { read } from "./data.js";
import { mount } from "./page.js";

boot(async (root, content) => mount(root, await read(content)));
