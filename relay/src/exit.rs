//! How it ends, as `--help` says.

use std::process::ExitCode;

use idem_client::{Error, ErrorKind, PublishError};

/// The exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Stopped = 0,
    Unexpected = 1,
    Settings = 2,
    Environment = 3,
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
        // The log may not be there yet.
        eprintln!("error: {}", causes(&self.error));
        self.exit.into()
    }
}

/// An error and its causes on one line. A cause that the line ends with already is not repeated.
fn causes(error: &anyhow::Error) -> String {
    error
        .chain()
        .fold(String::new(), |text, cause| match cause.to_string() {
            cause if text.is_empty() => cause,
            cause if text.ends_with(&cause) => text,
            cause => format!("{text}: {cause}"),
        })
}

/// A relay that runs waits for the environment. `--check` reports what the environment lacks.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::NotFound
            | ErrorKind::NotGranted
            | ErrorKind::NotInstalled
            | ErrorKind::NotClaimed
            | ErrorKind::ReadOnly
            | ErrorKind::ConnectionLost
            | ErrorKind::PoolExhausted => Exit::Environment,
            ErrorKind::Invalid => Exit::Settings,
            // A database or a role that does not exist, a wrong password, or a library that does
            // not serve the extension.
            _ => match error.sqlstate().map(|state| state.code()) {
                Some("3D000" | "28000" | "28P01" | "58000") => Exit::Environment,
                _ => Exit::Unexpected,
            },
        };
        Self {
            exit,
            error: error.into(),
        }
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        let exit = match error {
            PublishError::Unavailable(_) | PublishError::TopicUnavailable(_) => Exit::Environment,
            _ => Exit::Settings,
        };
        Self {
            exit,
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
