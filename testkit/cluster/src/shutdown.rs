//! The ways in which PostgreSQL stops.

use nix::sys::signal::Signal;

use crate::process::Stops;

/// A way in which a server stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Sessions are ended and everything is written. The next start needs no recovery.
    Fast,
    /// All processes end at once, and nothing is written. The next start recovers from the WAL, as
    /// after a crash.
    Immediate,
}

impl Shutdown {
    /// The signals that stop a dropped server, in this order.
    pub(crate) const IN_TURN: Stops = &[Signal::SIGINT, Signal::SIGQUIT];

    pub(crate) fn signal(self) -> Signal {
        match self {
            Self::Fast => Signal::SIGINT,
            Self::Immediate => Signal::SIGQUIT,
        }
    }
}
