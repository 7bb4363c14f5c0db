//! The errors of the functions in Rust, with their SQLSTATE and hint. Functions in PL/pgSQL raise
//! their own errors.

use idem_core::memory::OutOfMemory;
use idem_core::{Invalid, Rejected};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::PgSqlErrorCode::*;
use pgrx::prelude::*;
use std::ffi::CStr;

/// An error of an SQL function.
#[derive(Debug)]
pub enum Error {
    /// 22004: a required argument is NULL.
    Null(&'static str),
    /// 22023: an argument is invalid.
    Invalid(Invalid),
    /// 53200: the memory that the arguments need cannot be allocated.
    OutOfMemory(OutOfMemory),
    /// 58000: the extension does not exist in this database.
    NotInstalled,
    /// 58000: the extension exists, but lacks this table, index or sequence.
    Missing { relation: String },
    /// 58000: the server did not load the library at its start.
    NotPreloaded,
    /// 54000: a payload is larger than idem.max_payload.
    PayloadTooLarge { bytes: usize, most: usize },
    /// 54000: no id is left for a new destination.
    NoDestinationLeft,
    /// 58000: the library does not support this version of the extension's SQL. The SQLSTATE is not
    /// 55000, because clients treat 55000 as a claim or a lease that is not held, and this is a
    /// fault of the installation.
    VersionMismatch {
        installed: String,
        installed_is_older: bool,
        library: &'static str,
    },
    /// 58000: the database is being restored. The SQLSTATE is not 55000, for the reason that
    /// `VersionMismatch` states.
    Restoring,
    /// 25P01: the transaction does nothing but the claim.
    LoneClaim { function: &'static CStr },
    /// 25P01: the function requires a transaction block.
    NoTransactionBlock { function: &'static CStr },
    /// 2D000: a transaction commits although COMMIT is forbidden in it.
    CommitForbidden,
    /// 25P01: COMMIT is not forbidden in this transaction.
    CommitNotForbidden,
    /// 25P01: a marked COMMIT outside of the transaction that was guarded.
    NoGuardedTransaction,
    /// 25P02: a marked COMMIT of a failed transaction.
    FailedTransaction,
    /// 25000: a marked COMMIT with a role or a `search_path` that foreign code has left.
    SettingsChanged,
    /// 55000: this transaction has not claimed the message for which it records effects.
    NotClaimed { destination: String },
    /// 55000: a transaction cannot forget a claim that it made itself.
    ForgetsOwnClaim,
    /// 55000: the lease was lost, or was never acquired.
    LeaseLost { destination: String },
    /// 55P03: the message is leased.
    Leased { destination: String, seconds: f64 },
    /// 55P03: a running transaction is claiming the message that a lease holder completes.
    ClaimInProgress { destination: String },
    /// 23000: another id already has this key. The message is not a duplicate and must not be
    /// reported as one.
    KeyTaken {
        destination: String,
        taken_by: String,
    },
    /// 55000: no attempt at the external call is open: none was begun, or each one was reported to
    /// have had no effect.
    CallNotBegun { step: String },
    /// 55000: the external call has already ended with another result.
    CallEnded { step: String, how: &'static str },
    /// 23000: the external call was begun with another request, so its recorded response does not
    /// belong to this request.
    RequestMismatch { step: String },
    /// 42601: a query calls a function once for each column of its result.
    ExpandedRow { function: &'static CStr },
    /// 25000: the function requires READ COMMITTED.
    NeedsReadCommitted { function: String },
    /// 58000: a sequence is behind the rows that it numbers, so its next numbers are used already.
    /// The SQLSTATE is not 55000, for the reason that `VersionMismatch` states.
    SequenceBehind { of: String },
    /// XX001: a row that the extension wrote does not have the expected content.
    Corrupt(&'static str),
    /// 25006: the function writes, and the server is a standby.
    Standby { function: String },
    /// 25001: a step waits for its fence in the transaction that has published the step before.
    FenceInSameTransaction,
    /// 58000: a trigger of others on a table that the library writes without firing it.
    ForeignTrigger { trigger: String, table: String },
    /// 58000: a table has other columns than those that the library writes.
    OtherColumns { columns: i32, written: usize },
    /// 0A000: an index on a table that the library writes has an expression or a predicate.
    IndexIsNotPlain,
    /// 58000: the access method of a table lacks a function.
    OtherAccessMethod,
    /// 58000: the operating system has no random numbers.
    NoRandomNumbers,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Raises the error.
    pub fn raise(self) -> ! {
        ErrorReport::from(self).report(PgLogLevel::ERROR);
        unreachable!("an error ends the function")
    }

    pub fn lease_lost(destination: &str) -> Self {
        Error::LeaseLost {
            destination: destination.to_owned(),
        }
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Error::Invalid(invalid)
    }
}

impl From<OutOfMemory> for Error {
    fn from(error: OutOfMemory) -> Self {
        Error::OutOfMemory(error)
    }
}

impl From<Rejected> for Error {
    fn from(rejected: Rejected) -> Self {
        match rejected {
            Rejected::Invalid(invalid) => Error::Invalid(invalid),
            Rejected::OutOfMemory(error) => Error::OutOfMemory(error),
        }
    }
}

impl From<Error> for ErrorReport {
    fn from(error: Error) -> Self {
        let report = |code, message: String| ErrorReport::new(code, message, "idem");
        match error {
            Error::Null(argument) => report(
                ERRCODE_NULL_VALUE_NOT_ALLOWED,
                format!("{argument} must not be null"),
            ),
            Error::Invalid(Invalid { message, hint }) => {
                report(ERRCODE_INVALID_PARAMETER_VALUE, message).set_hint(hint)
            }
            Error::OutOfMemory(OutOfMemory { bytes }) => report(
                ERRCODE_OUT_OF_MEMORY,
                "out of memory".into(),
            )
            .set_hint(format!(
                "{bytes} bytes were not available. Pass less data to one function call, or give \
                 the server more memory."
            )),
            Error::NotInstalled => report(
                ERRCODE_SYSTEM_ERROR,
                "extension idem is not installed in this database".into(),
            )
            .set_hint("CREATE EXTENSION idem;"),
            Error::Missing { relation } => report(
                ERRCODE_SYSTEM_ERROR,
                format!("relation idem.{relation} is missing"),
            )
            .set_hint("Restore the database, or create the extension in a new database."),
            Error::NotPreloaded => report(
                ERRCODE_SYSTEM_ERROR,
                "the server has not loaded the library of idem at its start".into(),
            )
            .set_hint(
                "Add idem to shared_preload_libraries in postgresql.conf, and restart the server.",
            ),
            Error::NoDestinationLeft => report(
                ERRCODE_PROGRAM_LIMIT_EXCEEDED,
                "no id is left for a new destination".into(),
            )
            .set_hint("Remove unused destinations with idem_remove_destination."),
            Error::VersionMismatch {
                installed,
                installed_is_older,
                library,
            } => report(
                ERRCODE_SYSTEM_ERROR,
                format!(
                    "library version {library} of idem does not support extension version \
                     {installed}"
                ),
            )
            .set_hint(if installed_is_older {
                "ALTER EXTENSION idem UPDATE;".to_owned()
            } else {
                format!("Install the library of version {installed} and restart the server.")
            }),
            Error::Restoring => report(
                ERRCODE_SYSTEM_ERROR,
                "the database is being restored".into(),
            )
            .set_hint(
                "When pg_restore has ended without an error, run SELECT idem_finish_restore(). A \
                 restore with --single-transaction needs no such call.",
            ),
            Error::LoneClaim { function } => report(
                ERRCODE_NO_ACTIVE_SQL_TRANSACTION,
                format!("{} is alone in its transaction", function.to_string_lossy()),
            )
            .set_detail(
                "The claim would commit before the work is done. When the work fails, the message \
                 is lost.",
            )
            .set_hint(
                "Send BEGIN, the claim, the work and COMMIT, or do the work in the same statement.",
            ),
            Error::NoTransactionBlock { function } => report(
                ERRCODE_NO_ACTIVE_SQL_TRANSACTION,
                format!(
                    "{} can only be used in transaction blocks",
                    function.to_string_lossy()
                ),
            )
            .set_hint("Send BEGIN first. If BEGIN failed, send BEGIN again before this function."),
            Error::CommitForbidden => report(
                ERRCODE_INVALID_TRANSACTION_TERMINATION,
                "COMMIT is forbidden in this transaction".into(),
            )
            .set_hint(
                "The program that called idem_forbid_commit() commits this transaction, with \
                 COMMIT /* idem */ or after idem_allow_commit(). The handler of a message must not \
                 execute COMMIT.",
            ),
            Error::CommitNotForbidden => not_guarded("COMMIT is not forbidden in this transaction"),
            Error::NoGuardedTransaction => not_guarded(
                "a COMMIT with the mark of idem is outside of the transaction that it ends",
            ),
            Error::FailedTransaction => report(
                ERRCODE_IN_FAILED_SQL_TRANSACTION,
                "the transaction has failed and cannot be committed".into(),
            )
            .set_hint("Send ROLLBACK. The error of an earlier statement was ignored."),
            Error::SettingsChanged => report(
                ERRCODE_INVALID_TRANSACTION_STATE,
                "the role or the search_path was changed in the transaction".into(),
            )
            .set_hint("Restore both before the COMMIT: the functions of idem cannot be called."),
            Error::NotClaimed { destination } => report(
                ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!(
                    "this transaction has not claimed the message for destination \"{destination}\""
                ),
            )
            .set_hint(
                "Call idem_try_claim first, in the same transaction, and record effects only when \
                 it returns true.",
            ),
            Error::ForgetsOwnClaim => report(
                ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                "cannot forget a claim that this transaction made".into(),
            )
            .set_hint(
                "Roll back to a savepoint before the claim, or forget it in a later transaction.",
            ),
            Error::LeaseLost { destination } => report(
                ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!(
                    "this token holds no lease on the message for destination \"{destination}\""
                ),
            )
            .set_hint(
                "The lease expired and another process acquired it, or the message was completed \
                 or released. Stop working on it: nothing was written.",
            ),
            Error::Leased {
                destination,
                seconds,
            } => report(
                ERRCODE_LOCK_NOT_AVAILABLE,
                format!(
                    "the message for destination \"{destination}\" is leased for another \
                     {seconds:.3} seconds"
                ),
            )
            .set_hint(
                "Try again when the lease has ended. idem_claim(..., wait => false) returns \
                 in_progress instead.",
            ),
            Error::ClaimInProgress { destination } => report(
                ERRCODE_LOCK_NOT_AVAILABLE,
                format!(
                    "another transaction is claiming the message for destination \"{destination}\""
                ),
            )
            .set_hint(
                "Try again when that transaction has ended. If it commits a claim of the message, \
                 the lease is lost (55000).",
            ),
            Error::PayloadTooLarge { bytes, most } => report(
                ERRCODE_PROGRAM_LIMIT_EXCEEDED,
                format!("the payload has {bytes} bytes"),
            )
            .set_hint(format!(
                "It must have at most {most} bytes. Store the content elsewhere and send a \
                 reference to it, or raise idem.max_payload."
            )),
            Error::KeyTaken {
                destination,
                taken_by,
            } => report(
                ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION,
                format!("another message id of destination \"{destination}\" has the same key"),
            )
            .set_hint(format!(
                "The other id is {taken_by}. Send one of the two messages with another id."
            )),
            Error::CallNotBegun { step } => report(
                ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("no attempt at the call \"{step}\" of this message is under way"),
            )
            .set_hint("Call idem_begin_call and commit before each request."),
            Error::CallEnded { step, how } => report(
                ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("the call \"{step}\" of this message has already ended: it is {how}"),
            )
            .set_hint("The result that was recorded first is kept. Read it with idem_calls."),
            Error::RequestMismatch { step } => report(
                ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION,
                format!("the call \"{step}\" of this message was begun with another request"),
            )
            .set_hint(
                "Every attempt must send the same request. Use another step for another request.",
            ),
            Error::ExpandedRow { function } => {
                let function = function.to_string_lossy();
                report(
                    ERRCODE_SYNTAX_ERROR,
                    format!("this query calls {function} once for each column of its result"),
                )
                .set_hint(format!(
                    "Instead of SELECT ({function}(...)).*, write SELECT * FROM {function}(...)."
                ))
            }
            Error::NeedsReadCommitted { function } => report(
                ERRCODE_INVALID_TRANSACTION_STATE,
                format!(
                    "{function} needs READ COMMITTED, but this transaction has another isolation \
                     level"
                ),
            )
            .set_hint(
                "Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED, or SET \
                 default_transaction_isolation = 'read committed'.",
            ),
            Error::SequenceBehind { of } => report(
                ERRCODE_SYSTEM_ERROR,
                format!("sequence idem.{of}_seq is behind the rows that it numbers"),
            )
            .set_detail(
                "Logical replication or a command has left it at an earlier value. Relays would \
                 not deliver new effects.",
            )
            .set_hint("Stop producers and relays, then run SELECT idem_repair_relays()."),
            Error::Corrupt(what) => report(ERRCODE_DATA_CORRUPTED, what.into()),
            Error::Standby { function } => report(
                ERRCODE_READ_ONLY_SQL_TRANSACTION,
                format!("cannot execute {function} during recovery"),
            )
            .set_hint(
                "Send claims to the primary. A standby serves idem_is_claimed, idem_effects and \
                 idem_calls.",
            ),
            Error::FenceInSameTransaction => report(
                ERRCODE_ACTIVE_SQL_TRANSACTION,
                "cannot pass the fence in the transaction that published a step".into(),
            )
            .set_hint("Run each step of a rotation in its own transaction: CALL idem_maintain()."),
            Error::ForeignTrigger { trigger, table } => report(
                ERRCODE_SYSTEM_ERROR,
                format!("trigger \"{trigger}\" on table idem.{table} does not belong to idem"),
            )
            .set_hint(
                "Drop the trigger, or the foreign key that it belongs to. Functions of idem write \
                 this table without firing it, so a tool such as pg_repack would lose rows.",
            ),
            Error::OtherColumns { columns, written } => report(
                ERRCODE_SYSTEM_ERROR,
                format!("a table of idem has {columns} columns, but the library writes {written}"),
            )
            .set_hint(
                "Restore the columns that the extension created. A column that was added and \
                 dropped again counts too.",
            ),
            Error::IndexIsNotPlain => report(
                ERRCODE_FEATURE_NOT_SUPPORTED,
                "an index on a table of idem has an expression or a predicate".into(),
            )
            .set_hint(
                "Drop the index. Claims write these tables without the executor and maintain only \
                 indexes of plain columns.",
            ),
            Error::OtherAccessMethod => report(
                ERRCODE_SYSTEM_ERROR,
                "the access method of a table of idem lacks a function".into(),
            )
            .set_hint("ALTER TABLE ... SET ACCESS METHOD heap;"),
            Error::NoRandomNumbers => report(
                ERRCODE_SYSTEM_ERROR,
                "the operating system has no random numbers".into(),
            )
            .set_hint("Restart the server when the entropy source works."),
        }
    }
}

/// Returns the error of a program that commits where no guarded transaction is open.
fn not_guarded(message: &'static str) -> ErrorReport {
    let code = ERRCODE_NO_ACTIVE_SQL_TRANSACTION;
    ErrorReport::new(code, message, "idem")
        .set_detail(
            "The transaction in which idem_forbid_commit() was called has ended, or \
             idem_allow_commit() was called before.",
        )
        .set_hint(
            "The handler of a message must not execute COMMIT or ROLLBACK. It may execute ROLLBACK \
             TO SAVEPOINT.",
        )
}

/// Returns the argument, or fails with 22004 if it is NULL.
pub fn given<T>(argument: Option<T>, name: &'static str) -> Result<T> {
    argument.ok_or(Error::Null(name))
}

/// Returns the error for an invalid argument, with a hint that describes a valid argument.
pub fn invalid<T>(
    message: impl Into<String>,
    hint: impl Into<std::borrow::Cow<'static, str>>,
) -> Result<T> {
    Err(Error::Invalid(Invalid::new(message, hint)))
}

/// Prevents that the DETAIL of an error contains a Rust backtrace, which shows clients the paths of
/// the build. pgrx adds a backtrace if the environment of the server asks for it.
///
/// The Rust library reads the environment once, when a backtrace is first captured. So capture one
/// under another environment, which is then restored for other libraries.
pub fn keep_backtraces_away() {
    const VARIABLE: &str = "RUST_LIB_BACKTRACE";
    let set = |value: Option<std::ffi::OsString>| {
        // SAFETY: `_PG_init` runs in the only thread of the process.
        unsafe {
            match value {
                Some(value) => std::env::set_var(VARIABLE, value),
                None => std::env::remove_var(VARIABLE),
            }
        }
    };
    let before = std::env::var_os(VARIABLE);
    set(Some("0".into()));
    drop(std::backtrace::Backtrace::capture());
    set(before);
}
