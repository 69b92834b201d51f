// A saved page: the document stands in the same file.
import { mountAnswer } from "./answer.js";
import { boot } from "./boot.js";

boot(mountAnswer);
