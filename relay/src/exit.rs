//! How it ends, as `--help` says.

use std::process::ExitCode;

use idem_client::{Error, ErrorKind};

/// The exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Stopped = 0,
    Unexpected = 1,
    Settings = 2,
    Refused = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why it ended before it was told to.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    error: anyhow::Error,
}

impl Failure {
    /// Something that the person who started it has to put right.
    pub fn settings(error: anyhow::Error) -> Self {
        Self {
            exit: Exit::Settings,
            error,
        }
    }

    /// Says why, and answers how to end.
    pub fn report(self) -> ExitCode {
        // The log may not be there yet, and this line is for whoever looks why it does not run.
        eprintln!("error: {:#}", self.error);
        self.exit.into()
    }
}

/// Only what cannot mend itself gets here: the runtime goes on for ever about the rest.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let refused = match error.kind() {
            ErrorKind::NotGranted | ErrorKind::NotInstalled | ErrorKind::ReadOnly => true,
            // A relay, a database or a role that does not exist; a wrong password.
            _ => error
                .sqlstate()
                .is_some_and(|state| matches!(state.code(), "42704" | "3D000" | "28000" | "28P01")),
        };
        Self {
            exit: if refused { Exit::Refused } else { Exit::Unexpected },
            error: error.into(),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self {
            exit: Exit::Unexpected,
            error,
        }
    }
}
