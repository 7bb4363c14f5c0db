//! One transaction on a pooled connection, from its BEGIN to its end.
//!
//! A transaction that claims has one of two styles on the wire:
//!
//! - eager: `BEGIN; claim and guard` · the handler's statements · `record, marked COMMIT`. A
//!   duplicate costs one round trip.
//! - reactive: `BEGIN; guard` · the handler's statements · `allow; claim and guard` · `record,
//!   marked COMMIT`. A duplicate costs the work, which is rolled back.
//!
//! Statements joined by `;` are one simple query, and `·` is a wait. Statements joined by a comma
//! are a pipeline, in which each statement has its own Sync. `guard` is `idem_forbid_commit`,
//! `allow` is `idem_allow_commit`. A message without a claim, and one whose attempts are counted,
//! send the guard with BEGIN, and `send` or `allow and complete` with the COMMIT.
//!
//! **The claim fails if BEGIN fails.** A cancel request can make BEGIN fail. If the claim then
//! committed by itself, the message would never be processed. So BEGIN and the claim are one simple
//! query. When statements are prepared, they are two messages that are sent without a wait in
//! between, and the claim is `idem_claim_in_block`, which fails outside a transaction block
//! (25P01). Nothing else is sent before both replies, because the server forgets the failure after
//! each message. So the reactive style waits for the reply to BEGIN.
//!
//! **Statements are prepared without a pooler.** Each transaction begins with a statement that
//! returns the process that executes it. If that is the process that the connection was made to, no
//! pooler is in between (`connection/link.rs`).
//!
//! **A handler cannot commit.** The server rejects its COMMIT (2D000). A marked COMMIT fails in a
//! failed transaction (25P02), and outside of the transaction that was guarded (25P01): the error
//! is then `TransactionEnded`, and the message is rejected under its own id. If a proxy removes the
//! mark (2D000), the transaction is repeated, and the process executes `allow; COMMIT` from then
//! on.
//!
//! **The handler may change the session.** If the statements after it fail with 42501, 42883 or
//! 25000, the functions of idem cannot be called, although they could before: in most cases the
//! handler has changed the role or the `search_path`. The connection is closed, and the runtime
//! checks on another one that the functions can be called. If they can, the error is
//! `SettingsChanged`, and the message is rejected. Otherwise it is an error of the environment.

use std::{future::Future, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use futures_util::future::join;
use idem_client::{
    Destination, Effect, Error as Call, MessageId,
    lease::Held,
    pipeline::{
        FORBID_COMMIT_COLUMN, Pipelined, allow_and_query, commit_guarded, fire_and_forget,
        pipeline_commit, rollback_without_wait,
    },
    preflight::consumer_preflight,
    span,
    sql::{ClaimOutcome, RECORD_EFFECTS_BATCH, Send, last_value},
};
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::timeout;
use tokio_postgres::{
    Row, SimpleQueryMessage, Statement,
    error::SqlState,
    types::{Json, ToSql, Type},
};
use tracing::{Instrument, Span};
use uuid::Uuid;

use super::{
    claim::{self, CLAIM_IN_BLOCK, CLAIM_PROCESS, ClaimOptions},
    settings::Settings,
    task::Task,
    tx::Tx,
    work::Work,
};
use crate::{
    Error, Message,
    connection::{Checkout, Link, Patience, STATEMENT, leaves_connection_sound, on_connection},
    policy::Isolation,
};

/// The largest number of effects that one function call records.
const EFFECTS_OF_A_CALL: usize = 10_000;
/// The largest sum of the bytes of their JSON, unless one message has more. The server accepts
/// 64 MiB, in a form that can be longer.
const BYTES_OF_A_CALL: usize = 32 * 1024 * 1024;

/// The time limit for ROLLBACK. A server that is not busy replies much earlier.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection for one transaction. If the session is dropped before it
/// [finishes](Session::finish), the connection is closed, which rolls back. So a future that uses a
/// session may be dropped at any await.
pub struct Session {
    checkout: Arc<Checkout>,
    /// Whether statements are prepared. `None`: on a connection without a pooler.
    prepares: Option<bool>,
    /// What is known about the pool.
    link: Link,
    /// Whether the statements of the transaction are executed by the process of the server that the
    /// connection was made to. If so, statements can be prepared.
    is_direct: bool,
}

/// The columns of a statement that guards the transaction, after its own columns.
const GUARD: &str = FORBID_COMMIT_COLUMN;
/// The same, with the process that executes the statement. It is asked in the transaction, because
/// a pooler can give another process to each transaction.
const GUARD_AND_PROCESS: &str = "idem_forbid_commit(), pg_backend_pid()";

/// The value of a parameter, and its type.
type Parameter<'p> = (&'p (dyn ToSql + Sync), Type);

/// A statement that is ready to be sent.
struct Request<'p, const N: usize> {
    sql: &'static str,
    /// The prepared statement of the connection. If this is `None`, `sql` is sent as text.
    prepared: Option<Statement>,
    parameters: [Parameter<'p>; N],
    span: Span,
}

impl Session {
    /// Takes a connection from the pool for the handler of a message.
    pub(crate) async fn borrow(pool: &Pool, settings: &Settings) -> Result<Self, Error> {
        Self::new(pool, settings.prepared_statements, Patience::OfHandlers).await
    }

    /// Takes a connection from the pool, for statements that are not prepared. `patience` limits
    /// the wait for the handlers that use the pool.
    pub async fn unprepared(pool: &Pool, patience: Patience) -> Result<Self, Error> {
        Self::new(pool, Some(false), patience).await
    }

    async fn new(pool: &Pool, prepares: Option<bool>, patience: Patience) -> Result<Self, Error> {
        Ok(Self {
            checkout: Checkout::for_handler(pool, patience).await?,
            link: match prepares {
                None => Link::of(pool),
                Some(_) => Link::Unknown,
            },
            prepares,
            is_direct: false,
        })
    }

    // The beginning of the transaction. The statements of each function succeed or fail together:
    // if BEGIN is cancelled, no statement after it may commit by itself. So a function sends one
    // simple query, or BEGIN and a prepared claim that fails outside of a transaction block. Until
    // the end of the transaction, the server rejects a COMMIT of the handler: it would commit the
    // claim before the handler has succeeded.

    pub(crate) async fn begin(&mut self, isolation: Isolation) -> Result<(), Error> {
        let (begin, guard) = (claim::begin(isolation), self.guard());
        let begin = self.simple_query(format!("{begin}; SELECT {guard}"));
        let answers = self.begun(begin).await?;
        self.read_process(&answers);
        Ok(())
    }

    pub(crate) async fn begin_and_claim(
        &mut self,
        task: &Task<'_>,
        id: &MessageId,
    ) -> Result<ClaimOutcome, Error> {
        if self.prepares.unwrap_or(self.link == Link::Direct) {
            // This is checked before anything else is done in the transaction.
            self.is_direct = true;
            let claimed = self.begin_and_claim_prepared(task, id).await;
            // Nothing was done in the transaction, so it can be repeated.
            return claimed.map_err(|error| match self.note_lost_statement(&error) {
                true => Error::Pool(error.to_string()),
                false => error,
            });
        }
        let begin = claim::begin(task.policy.isolation);
        let claim = claim::claim(task, id, self.guard())?;
        let claimed = self.simple_query(format!("{begin}; {claim}"));
        let claimed = self.begun(outcome(claimed, task.destination, id));
        let (outcome, answers) = claimed.await?;
        self.read_process(&answers);
        Ok(outcome)
    }

    /// Sends BEGIN and the prepared claim without a wait in between. If BEGIN fails, the claim
    /// fails too, because there is no transaction block.
    async fn begin_and_claim_prepared(
        &mut self,
        task: &Task<'_>,
        id: &MessageId,
    ) -> Result<ClaimOutcome, Error> {
        let options = ClaimOptions::of(task);
        let parameters = [
            id.parameter(),
            task.destination.parameter(),
            (&options.wait as _, Type::BOOL),
            (&options.fingerprint as _, Type::TEXT),
            (&options.sent_at as _, Type::TIMESTAMPTZ),
        ];
        let span = span::of_message("claim", id, task.destination);
        // The statement is prepared after the transaction is noted as begun. If an earlier user has
        // left a failed transaction on the connection, preparing fails, and the transaction is then
        // rolled back.
        let claimed = async {
            let claim = self
                .request(CLAIM_IN_BLOCK, parameters, span.clone())
                .await?;
            let begin = self
                .client()
                .batch_execute(claim::begin(task.policy.isolation));
            let begin = Pipelined::new(begin).await;
            let claimed = Pipelined::new(self.query(&claim)).await;
            // The connection stops when a reply is not read, so both are read.
            let (begun, claimed) = join(begin.answer(), claimed.answer()).await;
            begun?;
            Ok(claimed?)
        };
        let claimed = self.begun(claimed.instrument(span.clone())).await?;
        let row = claimed.first();
        let process = row.and_then(|row| row.try_get(CLAIM_PROCESS).ok());
        if self.prepares.is_none() && !self.note_process(process) {
            return Err(Error::Pool(
                "the connection now leads to a pooler, so the transaction begins again without \
                 prepared statements"
                    .into(),
            ));
        }
        let row = row.ok_or_else(|| Error::Unexpected("a claim returned no row".into()))?;
        let outcome = ClaimOutcome::parse(row.try_get(0)?)?;
        span.record("idem.outcome", outcome.as_str());
        Ok(outcome)
    }

    /// If the error means that the server does not have the prepared statements of the connection,
    /// prepares no more statements on this pool. Returns whether it means that.
    fn note_lost_statement(&self, error: &Error) -> bool {
        let (None, Error::Client(Call::Database(cause))) = (self.prepares, error) else {
            return false;
        };
        // The server has no statement of this name, has another one, or needs other parameters.
        let is_lost = matches!(
            cause.code(),
            Some(
                &(SqlState::INVALID_SQL_STATEMENT_NAME
                    | SqlState::DUPLICATE_PSTATEMENT
                    | SqlState::PROTOCOL_VIOLATION)
            )
        );
        if let Some(pool) = self.checkout.pool().filter(|_| is_lost) {
            Link::note(&pool, Link::Pooled);
        }
        is_lost
    }

    /// Begins, executes the statement `claim`, and sets a savepoint after the claim. The statement
    /// must contain [`FORBID_COMMIT_COLUMN`].
    pub async fn begin_claim_and_mark(
        &self,
        claim: &str,
        savepoint: &str,
        destination: &Destination,
        id: &MessageId,
    ) -> Result<ClaimOutcome, Error> {
        let claimed = self.simple_query(format!("BEGIN; {claim}; SAVEPOINT {savepoint}"));
        let claimed = self.begun(outcome(claimed, destination, id)).await?;
        Ok(claimed.0)
    }

    pub(crate) async fn begin_and_claim_batch(
        &mut self,
        task: &Task<'_>,
        ids: &[MessageId],
    ) -> Result<Vec<bool>, Error> {
        let begin = claim::begin(task.policy.isolation);
        let claim = claim::claim_batch(ids, task.destination, self.guard())?;
        let claims = self.simple_query(format!("{begin}; {claim}"));
        let claims = claims.instrument(span::of_batch(
            "try_claim_batch",
            task.destination,
            ids.len(),
        ));
        let answers = self.begun(claims).await?;
        self.read_process(&answers);
        claim::parse_batch(last_value(&answers), ids.len())
    }

    async fn simple_query(&self, sql: String) -> Result<Vec<SimpleQueryMessage>, Error> {
        Ok(self.client().simple_query(&sql).await?)
    }

    /// Returns the last columns of the statement that begins the transaction.
    fn guard(&self) -> &'static str {
        match self.asks_process() {
            true => GUARD_AND_PROCESS,
            false => GUARD,
        }
    }

    fn asks_process(&self) -> bool {
        self.prepares.is_none() && self.link != Link::Pooled
    }

    /// Reads the last column of [`guard`](Self::guard).
    fn read_process(&mut self, answers: &[SimpleQueryMessage]) {
        if self.asks_process() {
            let process = last_column(answers).and_then(|process| process.parse().ok());
            self.note_process(process);
        }
    }

    /// Notes which process executes the statements of the transaction. Returns whether the
    /// connection was made to this process.
    fn note_process(&mut self, process: Option<i32>) -> bool {
        self.is_direct = self.checkout.is_made_to(process);
        let link = match self.is_direct {
            true => Link::Direct,
            false => Link::Pooled,
        };
        if let Some(pool) = self.checkout.pool().filter(|_| self.link != link) {
            Link::note(&pool, link);
        }
        self.is_direct
    }

    /// Runs `begin`, which sends BEGIN and the statements after it. Notes the state of the
    /// transaction before and after.
    async fn begun<T>(&self, begin: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.checkout.begins();
        let begun = begin.await?;
        self.checkout.begun();
        Ok(begun)
    }

    // Statements inside the transaction.

    /// Claims in the transaction of a handler that has returned. Fails with
    /// [`Call::TransactionEnded`] if the handler has ended the transaction, and with
    /// [`Call::SettingsChanged`] if the handler has changed the role or the search_path.
    pub(crate) async fn claim(
        &self,
        task: &Task<'_>,
        id: &MessageId,
    ) -> Result<ClaimOutcome, Error> {
        // To allow COMMIT checks the transaction. It is repeated at the end of the transaction.
        let sql = claim::claim(task, id, GUARD)?;
        let answers = async { Ok(allow_and_query(self.client(), &sql).await?) };
        let (outcome, _) = outcome(answers, task.destination, id).await?;
        Ok(outcome)
    }

    /// Runs the next handler of a batch. Fails, after this handler has returned, if the handler
    /// before it has ended the transaction, or has left a failed statement, a role or a search_path
    /// with which the functions of idem cannot be called. After the end of the transaction, this
    /// handler runs outside of one.
    ///
    /// The check costs no round trip, because it is sent before the statements of the handler. Only
    /// preparing it, at its first use on a connection, takes one. If preparing fails, this handler
    /// does not run. The reply to the check must be read: this handler could roll back to a
    /// savepoint that the handler before it has left open, and so revive the failed transaction.
    pub(crate) async fn work_next(
        &self,
        handler: &impl Work,
        message: &Message,
    ) -> Result<Vec<Effect>, Error> {
        // In one statement: if one of the functions cannot be called, none is executed.
        const CHECK: &str = "SELECT idem_allow_commit(), idem_forbid_commit()";
        let check = prepared_after_handler(self.request(CHECK, [], Span::none()).await)?;
        let checked = async {
            match &check.prepared {
                Some(statement) => self.client().query(statement, &[]).await.map(drop),
                None => self.client().batch_execute(check.sql).await,
            }
        };
        let checked = Pipelined::new(checked).await;
        let (checked, worked) = join(checked.answer(), self.work(handler, message)).await;
        // A `Tx` that the handler has kept occupies its connection, whatever else has failed.
        if !matches!(worked, Err(Error::TransactionKept)) {
            checked.map_err(idem_client::Error::of_allow)?;
        }
        worked
    }

    /// Runs the handler in the transaction.
    pub(crate) async fn work(
        &self,
        handler: &impl Work,
        message: &Message,
    ) -> Result<Vec<Effect>, Error> {
        let handled = handler(self.transaction(), message.clone()).await;
        self.ensure_transaction_returned()?;
        handled.map_err(Error::Handler)
    }

    /// Returns the transaction for a handler.
    pub fn transaction(&self) -> Tx {
        Tx::on(&self.checkout)
    }

    /// Fails with [`Error::TransactionKept`] if a [`Tx`] of this transaction still exists.
    pub fn ensure_transaction_returned(&self) -> Result<(), Error> {
        if self.checkout.is_kept() {
            // A kept `Tx` can still send statements, so close the connection at the server and do
            // not wait until the `Tx` is dropped. If the role may not terminate the backend, the
            // error of this statement aborts the transaction.
            fire_and_forget(
                self.checkout.client(),
                "SELECT pg_terminate_backend(pg_backend_pid())",
            );
            return Err(Error::TransactionKept);
        }
        Ok(())
    }

    /// Returns the connection, for statements of the integration in the transaction.
    pub fn client(&self) -> &tokio_postgres::Client {
        self.checkout.client()
    }

    // The end of the transaction.

    /// Records the effects of one or several messages and commits, in one round trip. Returns the
    /// message ids of the effects of each message. This function and those below fail with
    /// [`Call::TransactionEnded`] if the handler has ended the transaction, and with
    /// [`Call::SettingsChanged`] if the handler has changed the role or the search_path.
    pub(crate) async fn record_and_commit(
        &self,
        destination: &Destination,
        effects: &[(&MessageId, &[Effect])],
    ) -> Result<Vec<Vec<Uuid>>, Error> {
        let calls = in_calls(effects)?;
        let mut records = Vec::with_capacity(calls.len());
        for ToRecord { ids, effects } in &calls {
            let parameters = [
                (ids as _, Type::TEXT_ARRAY),
                destination.parameter(),
                (effects as _, Type::JSONB),
            ];
            let span = span::of_batch("record_effects_batch", destination, ids.len());
            let record = self.request(RECORD_EFFECTS_BATCH, parameters, span).await;
            records.push(prepared_after_handler(record)?);
        }
        let mut recorded = Vec::new();
        for rows in self.request_and_commit(&records).await? {
            match rows.as_slice() {
                [row] => recorded.extend(row.try_get::<_, Vec<Uuid>>(0)?),
                other => {
                    return Err(Error::Unexpected(format!(
                        "recording effects returned {other:?}"
                    )));
                }
            }
        }
        let mut recorded = recorded.into_iter();
        let ids = effects
            .iter()
            .map(|(_, effects)| recorded.by_ref().take(effects.len()).collect())
            .collect();
        Ok(ids)
    }

    /// Completes a lease with the effects and commits, in one round trip. Returns the message ids
    /// of the effects.
    ///
    /// Outside of a transaction, the completion would commit without the work of the handler. So
    /// its statement first ends the guard, which fails there.
    pub(crate) async fn complete_and_commit(
        &self,
        held: &Held,
        effects: &[Effect],
    ) -> Result<Vec<Uuid>, Error> {
        const COMPLETE: &str = "SELECT idem_allow_commit(), idem_complete($1, $2, $3, $4)";
        let (token, list) = (held.token(), Json(effects));
        let (id, destination) = (held.id(), held.destination());
        let parameters = [
            id.parameter(),
            destination.parameter(),
            (&token as _, Type::INT8),
            (&list as _, Type::JSONB),
        ];
        let span = span::of_message("complete", id, destination);
        let complete = prepared_after_handler(self.request(COMPLETE, parameters, span).await)?;
        self.checkout.ends();
        let completed = self.query(&complete).instrument(complete.span.clone());
        let completed = async {
            completed.await.map_err(|error| match error {
                Call::Database(error) => Call::of_allow(error),
                other => other,
            })
        };
        let sent = vec![Pipelined::new(completed).await];
        let rows = pipeline_commit(self.client(), sent).await?;
        match rows.first().map(Vec::as_slice) {
            Some([row]) => Ok(row.try_get(1)?),
            other => Err(Error::Unexpected(format!(
                "completing a lease returned {other:?}"
            ))),
        }
    }

    /// Writes effects without a claim to the outbox and commits, in one round trip. Returns the
    /// message ids of the effects. Outside of a transaction, each effect is sent by itself.
    pub(crate) async fn send_and_commit(&self, effects: &[Effect]) -> Result<Vec<Uuid>, Error> {
        let sends = effects
            .iter()
            .map(Send::of)
            .collect::<Result<Vec<_>, _>>()?;
        let mut requests = Vec::with_capacity(sends.len());
        for send in &sends {
            let request = self
                .request(send.sql(), send.parameters(), send.span())
                .await;
            requests.push(prepared_after_handler(request)?);
        }
        let rows = self.request_and_commit(&requests).await?;
        rows.iter()
            .flatten()
            .map(|row| Ok(row.try_get(0)?))
            .collect()
    }

    /// Sends the requests and commits, in one round trip.
    async fn request_and_commit<const N: usize>(
        &self,
        requests: &[Request<'_, N>],
    ) -> Result<Vec<Vec<Row>>, Error> {
        self.checkout.ends();
        let mut queries = Vec::with_capacity(requests.len());
        for request in requests {
            queries.push(self.query(request).instrument(request.span.clone()));
        }
        Ok(commit_guarded(self.client(), queries).await?)
    }

    /// Notes that the caller is about to send COMMIT or ROLLBACK.
    pub fn ends(&self) {
        self.checkout.ends();
    }

    /// Ends the transaction if it is still open, and returns the connection to its pool if the
    /// connection is usable. Returns the result. If the handler is not the cause of
    /// [`Call::SettingsChanged`], returns the error of the database in its place.
    pub async fn finish<T>(self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            self.note_lost_statement(error);
        }
        match &result {
            Err(Error::Client(Call::SettingsChanged(_))) => {
                let pool = self.checkout.pool();
                // The handler may have changed the settings of the session, so the connection is
                // closed, and another one shows whether the handler is the cause.
                drop(self);
                check_functions(pool).await?;
            }
            Err(error) if !leaves_connection_sound(error) => {}
            Err(_) if self.checkout.is_open() => self.roll_back().await,
            Ok(_) if self.checkout.is_open() => {
                rollback_without_wait(self.checkout.client());
                self.checkout.return_to_pool();
            }
            _ => self.checkout.return_to_pool(),
        }
        result
    }

    /// Rolls back and waits for the reply, so that this transaction has ended when the next attempt
    /// begins.
    pub async fn roll_back(self) {
        let rollback = self.checkout.client().batch_execute("ROLLBACK");
        // If the handler has dropped the future of a statement, for example after a timeout, the
        // statement may still be running. If ROLLBACK therefore takes too long, the connection is
        // closed, because the next user of the pool must not wait for that statement.
        if matches!(timeout(ROLLBACK_TIMEOUT, rollback).await, Ok(Ok(()))) {
            self.checkout.return_to_pool();
        }
    }

    // Sending statements.

    /// Returns a statement that is ready to be sent. If the statement must be prepared first, that
    /// takes a round trip.
    async fn request<'p, const N: usize>(
        &self,
        sql: &'static str,
        parameters: [Parameter<'p>; N],
        span: Span,
    ) -> Result<Request<'p, N>, Error> {
        let prepared = if self.prepares.unwrap_or(self.is_direct) {
            let types: Vec<Type> = parameters
                .iter()
                .map(|(_, of_type)| of_type.clone())
                .collect();
            Some(
                self.checkout
                    .client()
                    .prepare_typed_cached(sql, &types)
                    .await?,
            )
        } else {
            None
        };
        Ok(Request {
            sql,
            prepared,
            parameters,
            span,
        })
    }

    /// Sends the request at the first poll, as [`Pipelined`] requires it.
    async fn query<const N: usize>(
        &self,
        request: &Request<'_, N>,
    ) -> Result<Vec<Row>, idem_client::Error> {
        let client = self.checkout.client();
        Ok(match &request.prepared {
            None => client.query_typed(request.sql, &request.parameters).await?,
            Some(statement) => {
                let values = request.parameters.each_ref().map(|(value, _)| *value);
                client.query(statement, &values).await?
            }
        })
    }
}

/// Checks in a transaction without a handler that the functions of idem can be called.
async fn check_functions(pool: Option<Pool>) -> Result<(), Error> {
    let Some(pool) = pool else {
        return Err(Error::Pool("the pool is dropped".into()));
    };
    on_connection(&pool, STATEMENT, async |client| {
        consumer_preflight(client.client()).await
    })
    .await
}

/// Reads the outcome of a claim from the replies to its simple query. Returns the replies too.
async fn outcome(
    answers: impl Future<Output = Result<Vec<SimpleQueryMessage>, Error>>,
    destination: &Destination,
    id: &MessageId,
) -> Result<(ClaimOutcome, Vec<SimpleQueryMessage>), Error> {
    let span = span::of_message("claim", id, destination);
    async {
        let answers = answers.await?;
        let outcome = ClaimOutcome::parse(last_value(&answers))?;
        span.record("idem.outcome", outcome.as_str());
        Ok((outcome, answers))
    }
    .instrument(span.clone())
    .await
}

/// Returns the last value of the last row in the reply to a simple query.
fn last_column(answers: &[SimpleQueryMessage]) -> Option<&str> {
    let mut rows = answers.iter().rev().filter_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let row = rows.next()?;
    row.get(row.len().checked_sub(1)?)
}

/// The arguments of one function call that records effects.
#[derive(Default)]
struct ToRecord {
    ids: Vec<String>,
    /// The effects of each message.
    effects: Json<Vec<Box<RawValue>>>,
}

/// Returns the messages that have effects, for each function call. One call records all effects of
/// a message, and of several messages as much as the server accepts.
fn in_calls(effects: &[(&MessageId, &[Effect])]) -> Result<Vec<ToRecord>, Error> {
    let mut calls = Vec::new();
    let mut call = ToRecord::default();
    let (mut count, mut bytes) = (0, 0);
    for (id, effects) in effects.iter().filter(|(_, effects)| !effects.is_empty()) {
        let json = to_raw_value(effects).map_err(Call::Encode)?;
        let more = json.get().len();
        (count, bytes) = (count + effects.len(), bytes + more);
        let is_full = count > EFFECTS_OF_A_CALL || bytes > BYTES_OF_A_CALL;
        if is_full && !call.ids.is_empty() {
            calls.push(std::mem::take(&mut call));
            (count, bytes) = (effects.len(), more);
        }
        call.ids.push(id.to_string());
        call.effects.0.push(json);
    }
    if !call.ids.is_empty() {
        calls.push(call);
    }
    Ok(calls)
}

/// Classifies the error of a statement that is prepared after the handler and before COMMIT is
/// allowed.
fn prepared_after_handler<T>(prepared: Result<T, Error>) -> Result<T, Error> {
    prepared.map_err(|error| match error {
        Error::Client(Call::Database(error)) => Call::of_allow(error).into(),
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many messages each call records.
    fn calls(messages: &[Vec<Effect>]) -> Vec<usize> {
        let id = MessageId::from(Uuid::nil());
        let effects: Vec<_> = messages.iter().map(|list| (&id, list.as_slice())).collect();
        let calls = in_calls(&effects).unwrap();
        calls.iter().map(|call| call.ids.len()).collect()
    }

    /// The server accepts a number of effects and of bytes in one call. The effects of one message
    /// are never split, and messages without effects are left out.
    #[test]
    fn effects_of_a_batch_are_split_by_number_and_bytes() {
        let small = Effect::json("t", &1).unwrap();
        let many = vec![small.clone(); EFFECTS_OF_A_CALL / 2];
        assert_eq!(calls(&[many.clone(), vec![], many.clone()]), [2]);
        assert_eq!(
            calls(&[many.clone(), many.clone(), vec![small.clone()]]),
            [2, 1]
        );
        let large = vec![Effect::json("t", &"x".repeat(BYTES_OF_A_CALL / 2)).unwrap()];
        assert_eq!(calls(&[large.clone(), vec![small.clone()], large]), [2, 1]);
        assert_eq!(calls(&[vec![], vec![]]), [0; 0]);
    }
}
