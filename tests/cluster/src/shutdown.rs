//! How PostgreSQL is told to stop.

use nix::sys::signal::Signal;

use crate::process::Stops;

/// How a server is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Sessions are ended, everything is written, the next start needs no recovery.
    Fast,
    /// Everything is dropped; the next start recovers from the log, as after a crash.
    Immediate,
}

impl Shutdown {
    /// For a server that has to end, one way or another.
    pub(crate) const IN_TURN: Stops = &[Signal::SIGINT, Signal::SIGQUIT];

    pub(crate) fn signal(self) -> Signal {
        match self {
            Self::Fast => Signal::SIGINT,
            Self::Immediate => Signal::SIGQUIT,
        }
    }
}
