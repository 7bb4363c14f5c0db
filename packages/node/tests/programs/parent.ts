/** Ends this program when its parent has ended, which holds the other end of the input. */

process.stdin.on("end", () => process.exit(1));
process.stdin.resume();
