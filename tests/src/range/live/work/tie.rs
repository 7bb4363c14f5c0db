//! No process outlives whoever started it.

use std::{io::Read, process, thread};

/// Ends this process when its standard input does: whoever holds the other end of the pipe is gone
/// then.
///
/// A signal by the kernel at the parent's death would come when the parent's *thread* ends, which
/// says nothing.
pub fn end_with_owner() {
    thread::spawn(|| {
        let mut nothing = [0];
        while matches!(std::io::stdin().read(&mut nothing), Ok(1..)) {}
        process::exit(70);
    });
}
