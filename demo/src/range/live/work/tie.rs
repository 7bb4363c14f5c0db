//! Ends a process together with the process that started it.

use std::{io::Read, process, thread};

/// Ends this process when its standard input is closed, which happens at the latest when the parent
/// process ends.
///
/// The parent-death signal of the kernel is not used, because the kernel sends it already when the
/// *thread* ends that started this process.
pub fn end_with_owner() {
    thread::spawn(|| {
        let mut nothing = [0];
        while matches!(std::io::stdin().read(&mut nothing), Ok(1..)) {}
        process::exit(70);
    });
}
