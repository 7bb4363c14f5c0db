//! The exit codes, which `--help` documents, and the errors that lead to them.

use std::process::ExitCode;

use idem_client::ErrorKind;
use idem_runtime::{Error, PublishError};

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

/// An error that ends the program.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    error: anyhow::Error,
}

impl Failure {
    /// Returns the failure for an error in the settings.
    pub fn settings(error: anyhow::Error) -> Self {
        Self {
            exit: Exit::Settings,
            error,
        }
    }

    /// Prints the error, and returns its exit code.
    pub fn report(self) -> ExitCode {
        // The log may not be started yet, so print to standard error.
        eprintln!("error: {}", causes(&self.error));
        self.exit.into()
    }
}

/// Returns an error and its causes in one line. A cause is left out if the line already ends with
/// it.
fn causes(error: &anyhow::Error) -> String {
    error
        .chain()
        .fold(String::new(), |text, cause| match cause.to_string() {
            cause if text.is_empty() => cause,
            cause if text.ends_with(&cause) => text,
            cause => format!("{text}: {cause}"),
        })
}

/// Errors of the environment end only `--check`. A relay that runs waits until they are solved.
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
            // The database or the role does not exist, the password is wrong, or the library does
            // not support the version of the extension.
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
