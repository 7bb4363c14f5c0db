/** The functions in the transactions of the large libraries, which have a package.json here. */

import { testLibrary } from "../libraries/suite.js";
import * as prisma from "./prisma.js";
import * as typeorm from "./typeorm.js";

await testLibrary(prisma.connect);
await testLibrary(typeorm.connect);
