//! Sends several requests in one round trip.
//!
//! The driver sends a request at the first poll of its future. Requests that are all polled once
//! before the first result is awaited are sent together and share a round trip.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::atomic::{AtomicBool, Ordering},
    task::Poll,
};

use futures_util::{FutureExt, TryStreamExt, future::join, poll};
use tokio_postgres::{Client, SimpleQueryMessage, error::SqlState};

use crate::Error;

/// An expression that guards the transaction: the server rejects a COMMIT that the user of the
/// transaction executes (2D000), and the transaction is then a failed one. Only
/// [`commit_guarded`] commits it. Add the expression to the columns of the statement that claims,
/// because a statement of its own would cost more.
pub const FORBID_COMMIT_COLUMN: &str = "idem_forbid_commit()";

/// An expression that ends the guard: a plain COMMIT succeeds again. Fails with 25P01 if the
/// guarded transaction has ended. Add it as the first column of a statement that must not take
/// effect outside of this transaction.
pub const ALLOW_COMMIT_COLUMN: &str = "idem_allow_commit()";

/// The statement of [`ALLOW_COMMIT_COLUMN`]. The server skips the statements after it in the same
/// simple query if it fails.
const ALLOW_COMMIT: &str = "SELECT idem_allow_commit()";

/// Commits a guarded transaction. The server reads the comment.
const MARKED_COMMIT: &str = "COMMIT /* idem */";

/// Whether a COMMIT of this process has arrived without its comment.
static IS_COMMENT_REMOVED: AtomicBool = AtomicBool::new(false);

/// A request that was sent. Its result is awaited later.
pub struct Pipelined<'f, T> {
    early: Option<T>,
    request: Pin<Box<dyn Future<Output = T> + Send + 'f>>,
}

impl<'f, T> Pipelined<'f, T> {
    /// Sends the request: polls its future once.
    pub async fn new(request: impl Future<Output = T> + Send + 'f) -> Self {
        let mut request: Pin<Box<dyn Future<Output = T> + Send + 'f>> = Box::pin(request);
        let early = match poll!(request.as_mut()) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        };
        Self { early, request }
    }

    /// Waits for the result.
    pub async fn answer(self) -> T {
        match self.early {
            Some(answer) => answer,
            None => self.request.await,
        }
    }
}

/// Sends COMMIT after requests of the same transaction, which is not guarded, and waits for all
/// results. Fails without a request.
///
/// The requests must fail if a statement of the transaction has failed or if the transaction has
/// ended: COMMIT itself reports no error in these cases. When this function returns, COMMIT or
/// ROLLBACK was sent, also after an error. An error other than [`Error::AmbiguousCommit`] means
/// that the COMMIT of this function has not taken effect.
pub async fn pipeline_commit<T>(
    client: &Client,
    requests: Vec<Pipelined<'_, Result<T, Error>>>,
) -> Result<Vec<T>, Error> {
    if requests.is_empty() {
        rollback_without_wait(client);
        return Err(Error::Invalid("a COMMIT without a request".into()));
    }
    if requests.iter().any(Pipelined::has_failed) {
        // The request was not sent, or the connection is lost, so COMMIT must not be sent.
        rollback_without_wait(client);
        return answers(requests).await;
    }
    let commit = Pipelined::new(client.batch_execute("COMMIT")).await;
    let answers = answers(requests).await.map_err(|error| match error {
        Error::Database(error) => Error::of_commit(error),
        other => other,
    })?;
    commit.answer().await.map_err(|error| {
        roll_back_after(client, &error);
        Error::of_commit(error)
    })?;
    Ok(answers)
}

/// Sends the requests and commits a guarded transaction, in one round trip.
///
/// Fails with [`Error::TransactionEnded`] if the transaction has ended. It cannot have committed,
/// but requests that succeed outside of a transaction have then taken effect. Fails with
/// [`Error::SettingsChanged`] if the functions of idem cannot be called any more, because the role
/// or the search_path has changed. Fails with [`Error::CommentRemoved`] if a pooler has removed the
/// comment from the COMMIT. Also fails if a statement of the transaction has failed. When this
/// function returns, COMMIT or ROLLBACK was sent, also after an error. An error other than
/// [`Error::AmbiguousCommit`] means a certain rollback.
pub async fn commit_guarded<T>(
    client: &Client,
    requests: Vec<impl Future<Output = Result<T, Error>> + Send>,
) -> Result<Vec<T>, Error> {
    let mut sent = Vec::with_capacity(requests.len());
    for request in requests {
        sent.push(Pipelined::new(request).await);
    }
    if sent.iter().any(Pipelined::has_failed) {
        rollback_without_wait(client);
        return answers(sent).await;
    }
    let is_marked = !IS_COMMENT_REMOVED.load(Ordering::Relaxed);
    let commit = Pipelined::new(async {
        match is_marked {
            true => (true, client.batch_execute(MARKED_COMMIT).await),
            false => {
                let (is_allowed, answers) = query_after_allow(client, "COMMIT").await;
                (is_allowed, answers.map(drop))
            }
        }
    });
    let commit = commit.await;
    // Read the results concurrently: the connection stops when the first one is not read.
    let (answers, (is_allowed, committed)) = join(answers(sent), commit.answer()).await;
    let Err(error) = committed else {
        return answers;
    };
    roll_back_after(client, &error);
    match error.code() {
        Some(&SqlState::NO_ACTIVE_SQL_TRANSACTION) => return Err(Error::TransactionEnded),
        Some(&SqlState::INVALID_TRANSACTION_STATE) if is_marked => {
            return Err(Error::SettingsChanged(error));
        }
        Some(&SqlState::INVALID_TRANSACTION_TERMINATION) if is_marked && is_of_guard(&error) => {
            note_removed_comment();
            return Err(Error::CommentRemoved(error));
        }
        _ => {}
    }
    Err(match answers {
        // COMMIT reports only that the transaction has failed.
        Err(Error::Database(first)) => Error::of_last(first),
        Err(first) => first,
        Ok(_) if is_allowed => Error::of_commit(error),
        Ok(_) => Error::of_last(error),
    })
}

/// Returns whether the guard has rejected the COMMIT, and not a trigger that it has fired.
fn is_of_guard(error: &tokio_postgres::Error) -> bool {
    let answer = error.as_db_error();
    answer.is_some_and(|answer| answer.message().starts_with("COMMIT is forbidden"))
}

fn note_removed_comment() {
    if !IS_COMMENT_REMOVED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "a pooler or a proxy removes comments from statements, so COMMIT arrived without its \
             mark: from now on this process executes idem_allow_commit() before each COMMIT"
        );
    }
}

/// Allows COMMIT in a guarded transaction, and executes `sql`, in one simple query. The errors of
/// the first step are those of [`ALLOW_COMMIT_COLUMN`], and the server then skips `sql`.
pub async fn allow_and_query(client: &Client, sql: &str) -> Result<Vec<SimpleQueryMessage>, Error> {
    let (is_allowed, answers) = query_after_allow(client, sql).await;
    answers.map_err(|error| match is_allowed {
        true => Error::Database(error),
        false => Error::of_allow(error),
    })
}

/// Sends `SELECT idem_allow_commit()` and `sql` in one simple query: if COMMIT cannot be allowed,
/// the server skips `sql`. Returns whether COMMIT was allowed, and the replies.
async fn query_after_allow(
    client: &Client,
    sql: &str,
) -> (bool, Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>) {
    let mut is_allowed = false;
    let answers = async {
        let sql = format!("{ALLOW_COMMIT}; {sql}");
        let mut answers = pin!(client.simple_query_raw(&sql).await?);
        let mut read = Vec::new();
        while let Some(answer) = answers.try_next().await? {
            is_allowed |= matches!(answer, SimpleQueryMessage::CommandComplete(_));
            read.push(answer);
        }
        Ok(read)
    };
    let answers = answers.await;
    (is_allowed, answers)
}

impl<T> Pipelined<'_, Result<T, Error>> {
    /// Returns whether the request could not be sent.
    fn has_failed(&self) -> bool {
        matches!(self.early, Some(Err(_)))
    }
}

async fn answers<T>(requests: Vec<Pipelined<'_, Result<T, Error>>>) -> Result<Vec<T>, Error> {
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        answers.push(request.answer().await?);
    }
    Ok(answers)
}

/// Sends ROLLBACK without waiting if the transaction can still be open after this error of COMMIT:
/// the server has rejected the statement before it ended the transaction, for example because it
/// was cancelled.
pub fn roll_back_after(client: &Client, error: &tokio_postgres::Error) {
    let is_open = [
        SqlState::QUERY_CANCELED,
        SqlState::INVALID_TRANSACTION_STATE,
        SqlState::NO_ACTIVE_SQL_TRANSACTION,
        SqlState::IN_FAILED_SQL_TRANSACTION,
        SqlState::INVALID_TRANSACTION_TERMINATION,
        SqlState::INSUFFICIENT_PRIVILEGE,
        SqlState::UNDEFINED_FUNCTION,
    ];
    if error.code().is_some_and(|code| is_open.contains(code)) {
        rollback_without_wait(client);
    }
}

/// Sends ROLLBACK without waiting. A connection executes its requests in order.
pub fn rollback_without_wait(client: &Client) {
    fire_and_forget(client, "ROLLBACK");
}

/// Sends a statement without waiting for its result.
pub fn fire_and_forget(client: &Client, sql: &str) {
    let _ = client.batch_execute(sql).now_or_never();
}
