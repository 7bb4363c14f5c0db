//! One transaction on a pooled connection, from its BEGIN to its end.

use std::{future::Future, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use futures_util::future::join;
use idem_client::{
    Destination, Effect, Error as Call, MessageId, RecordedEffect,
    lease::Held,
    pipeline::{
        ALLOW_COMMIT, FORBID_COMMIT_COLUMN, Pipelined, allow_and_commit, allow_and_query,
        allow_commit, fire_and_forget, pipeline_commit, rollback_without_wait,
    },
    span,
    sql::{COMPLETE, EFFECTS, RECORD_EFFECTS, Send, last_value},
};
use tokio::time::timeout;
use tokio_postgres::{
    Row, SimpleQueryMessage, Statement,
    types::{Json, ToSql, Type},
};
use tracing::{Instrument, Span};
use uuid::Uuid;

use super::{
    claim::{self, CLAIM_IN_BLOCK, ClaimOptions, ClaimOutcome},
    settings::Settings,
    task::Task,
    tx::Tx,
    work::Work,
};
use crate::{
    Error, Message,
    connection::{Checkout, Patience, STATEMENT, leaves_connection_sound, on_connection},
    policy::Isolation,
};

/// The time limit for ROLLBACK. A server that is not busy replies much earlier.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection for one transaction. If the session is dropped before it
/// [finishes](Session::finish), the connection is closed, which rolls back. So a future that uses a
/// session may be dropped at any await.
pub struct Session {
    checkout: Arc<Checkout>,
    uses_prepared: bool,
}

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
    pub(crate) async fn borrow(pool: &Pool, settings: &Settings) -> Result<Self, Error> {
        Self::new(pool, settings.prepared_statements, Patience::OfHandlers).await
    }

    /// Takes a connection from the pool. `patience` limits the wait for the handlers that use the
    /// pool.
    pub async fn new(pool: &Pool, uses_prepared: bool, patience: Patience) -> Result<Self, Error> {
        Ok(Self {
            checkout: Checkout::for_handler(pool, patience).await?,
            uses_prepared,
        })
    }

    // The beginning of the transaction. The statements of each function succeed or fail together:
    // if BEGIN is cancelled, no statement after it may commit by itself. So a function sends one
    // simple query, or BEGIN and a prepared claim that fails outside of a transaction block. Until
    // the end of the transaction, the server rejects a COMMIT of the handler: it would commit the
    // claim before the handler has succeeded.

    pub(crate) async fn begin(&self, isolation: Isolation) -> Result<(), Error> {
        let sql = format!("{}; SELECT {FORBID_COMMIT_COLUMN}", claim::begin(isolation));
        let begin = self.checkout.client().batch_execute(&sql);
        self.begun(async { Ok(begin.await?) }).await
    }

    pub(crate) async fn begin_and_claim(
        &self,
        task: &Task<'_>,
        id: &MessageId,
    ) -> Result<ClaimOutcome, Error> {
        if self.uses_prepared {
            return self.begin_and_claim_prepared(task, id).await;
        }
        let begin = claim::begin(task.policy.isolation);
        let sql = format!("{begin}; {}", claim::claim(task, id)?);
        self.begun(self.outcome(&sql, task.destination, id)).await
    }

    /// Sends BEGIN and the prepared claim without a wait in between. If BEGIN fails, the claim
    /// fails too, because there is no transaction block.
    async fn begin_and_claim_prepared(
        &self,
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
            let claimed = claimed?;
            let row = claimed.first();
            let row = row.ok_or_else(|| Error::Unexpected("a claim returned no row".into()))?;
            let outcome = ClaimOutcome::parse(row.try_get(0)?)?;
            span.record("idem.outcome", outcome.as_str());
            Ok(outcome)
        };
        self.begun(claimed.instrument(span.clone())).await
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
        let sql = format!("BEGIN; {claim}; SAVEPOINT {savepoint}");
        self.begun(self.outcome(&sql, destination, id)).await
    }

    pub(crate) async fn begin_and_claim_batch(
        &self,
        task: &Task<'_>,
        ids: &[MessageId],
    ) -> Result<Vec<bool>, Error> {
        let begin = claim::begin(task.policy.isolation);
        let claim = claim::claim_batch(ids, task.destination)?;
        let sql = format!("{begin}; {claim}");
        let claims = self.checkout.client().simple_query(&sql);
        let claims = claims.instrument(span::of_batch(
            "try_claim_batch",
            task.destination,
            ids.len(),
        ));
        let answers = self.begun(async { Ok(claims.await?) }).await?;
        claim::parse_batch(last_value(&answers), ids.len())
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
        let sql = claim::claim(task, id)?;
        let answers = async { Ok(allow_and_query(self.client(), &sql).await?) };
        outcome(answers, task.destination, id).await
    }

    async fn outcome(
        &self,
        sql: &str,
        destination: &Destination,
        id: &MessageId,
    ) -> Result<ClaimOutcome, Error> {
        let answers = async { Ok(self.client().simple_query(sql).await?) };
        outcome(answers, destination, id).await
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

    /// Returns the effects that the first execution of a message recorded.
    pub(crate) async fn effects(
        &self,
        id: &MessageId,
        destination: &Destination,
    ) -> Result<Vec<RecordedEffect>, Error> {
        let parameters = [id.parameter(), destination.parameter()];
        let request = self
            .request(
                EFFECTS,
                parameters,
                span::of_message("effects", id, destination),
            )
            .await?;
        let rows = self
            .query(&request)
            .instrument(request.span.clone())
            .await?;
        let rows = rows.into_iter().map(idem_client::Row::from);
        let effects: Result<_, idem_client::Error> =
            rows.map(|row| RecordedEffect::try_from(&row)).collect();
        Ok(effects?)
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
        let lists: Vec<_> = effects
            .iter()
            .map(|(id, effects)| (*id, Json(*effects)))
            .collect();
        let mut records = Vec::with_capacity(lists.len());
        for (id, list) in lists.iter().filter(|(_, list)| !list.0.is_empty()) {
            let parameters = [
                id.parameter(),
                destination.parameter(),
                (list as _, Type::JSONB),
            ];
            let span = span::of_message("record_effects", id, destination);
            let record = self.request(RECORD_EFFECTS, parameters, span).await;
            records.push(prepared_after_handler(record)?);
        }
        let mut rows = self.request_and_commit(&records).await?.into_iter();
        let ids = effects.iter().map(|(_, effects)| match effects {
            [] => Ok(Vec::new()),
            _ => match rows.next().as_deref() {
                Some([row]) => Ok(row.try_get(0)?),
                other => Err(Error::Unexpected(format!(
                    "recording effects returned {other:?}"
                ))),
            },
        });
        ids.collect()
    }

    /// Completes a lease with the effects and commits. Returns the message ids of the effects.
    ///
    /// Outside of a transaction, the completion would commit without the work of the handler. So
    /// this function first waits for the reply that allows COMMIT, which takes a round trip.
    pub(crate) async fn complete_and_commit(
        &self,
        held: &Held,
        effects: &[Effect],
    ) -> Result<Vec<Uuid>, Error> {
        allow_commit(self.client()).await?;
        let (token, list) = (held.token(), Json(effects));
        let (id, destination) = (held.id(), held.destination());
        let parameters = [
            id.parameter(),
            destination.parameter(),
            (&token as _, Type::INT8),
            (&list as _, Type::JSONB),
        ];
        let complete = self
            .request(
                COMPLETE,
                parameters,
                span::of_message("complete", id, destination),
            )
            .await?;
        self.checkout.ends();
        let completed = self.query(&complete).instrument(complete.span.clone());
        let sent = vec![Pipelined::new(completed).await];
        let rows = pipeline_commit(self.client(), sent).await?;
        match rows.first().map(Vec::as_slice) {
            Some([row]) => Ok(row.try_get(0)?),
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

    /// Allows COMMIT, sends the requests, and commits, in one round trip.
    async fn request_and_commit<const N: usize>(
        &self,
        requests: &[Request<'_, N>],
    ) -> Result<Vec<Vec<Row>>, Error> {
        self.checkout.ends();
        let mut queries = Vec::with_capacity(requests.len());
        for request in requests {
            queries.push(self.query(request).instrument(request.span.clone()));
        }
        Ok(allow_and_commit(self.client(), queries).await?)
    }

    /// Notes that the caller is about to send COMMIT or ROLLBACK.
    pub fn ends(&self) {
        self.checkout.ends();
    }

    /// Ends the transaction if it is still open, and returns the connection to its pool if the
    /// connection is usable. Returns the result. If the handler is not the cause of
    /// [`Call::SettingsChanged`], returns the error of the database in its place.
    pub async fn finish<T>(self, result: Result<T, Error>) -> Result<T, Error> {
        match &result {
            Err(Error::Client(Call::SettingsChanged(_))) => {
                let pool = self.checkout.pool();
                // The handler may have changed the settings of the session, so the connection is
                // closed, and another one shows whether the handler is the cause.
                drop(self);
                check_guards(pool).await?;
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
        let prepared = if self.uses_prepared {
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

/// Calls the functions that guard COMMIT in a transaction without a handler.
async fn check_guards(pool: Option<Pool>) -> Result<(), Error> {
    let Some(pool) = pool else {
        return Err(Error::Pool("the pool is dropped".into()));
    };
    // Several statements of one simple query are a transaction.
    let sql = format!("SELECT {FORBID_COMMIT_COLUMN}; {ALLOW_COMMIT}");
    on_connection(&pool, STATEMENT, async |client| {
        client.batch_execute(&sql).await
    })
    .await
}

/// Reads the outcome of a claim from the replies to its simple query.
async fn outcome(
    answers: impl Future<Output = Result<Vec<SimpleQueryMessage>, Error>>,
    destination: &Destination,
    id: &MessageId,
) -> Result<ClaimOutcome, Error> {
    let span = span::of_message("claim", id, destination);
    async {
        let outcome = ClaimOutcome::parse(last_value(&answers.await?))?;
        span.record("idem.outcome", outcome.as_str());
        Ok(outcome)
    }
    .instrument(span.clone())
    .await
}

/// Classifies the error of a statement that is prepared after the handler and before COMMIT is
/// allowed.
fn prepared_after_handler<T>(prepared: Result<T, Error>) -> Result<T, Error> {
    prepared.map_err(|error| match error {
        Error::Client(Call::Database(error)) => Call::of_allow(error).into(),
        other => other,
    })
}
