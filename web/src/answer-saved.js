// A saved page: the document is in the same file.
import { mountAnswer } from "./answer.js";
import { boot } from "./boot.js";

boot(mountAnswer);
