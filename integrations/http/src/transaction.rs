//! Processes a request in the transaction that claims it.

use std::error::Error as StdError;

use bytes::Bytes;
use http::{Request, Response, response::Parts};
use idem_client::pipeline::{
    FORBID_COMMIT_COLUMN, Pipelined, pipeline_commit, rollback_without_wait,
};
use idem_runtime::{
    Error,
    policy::Retry,
    transaction::{ClaimOutcome, Patience, Session, again},
};
use tower::Service;

use crate::{
    body::{self, Body},
    extensions::{KeepWrites, RequestTx},
    journal,
    options::{Options, keeps},
    problem::Problem,
    recorded::Recorded,
    request_identity::{Failure, RequestIdentity, replay, unrecordable},
};

/// The savepoint after the claim and before the handler. If the handler returns status 4xx, its
/// writes are rolled back to this savepoint. If the handler has ended the transaction itself, the
/// savepoint does not exist, so [`UNDO`] and [`KEEP`] fail.
const SAVEPOINT: &str = "idem_http";
const UNDO: &str = "ROLLBACK TO SAVEPOINT idem_http";
const KEEP: &str = "RELEASE SAVEPOINT idem_http";

/// Claims the request, runs the handler, records its response, and commits. If the future is
/// dropped, either everything has committed or nothing has.
pub(crate) async fn answer<S, R>(
    options: &Options,
    identity: RequestIdentity,
    mut request: Request<Body>,
    mut service: S,
) -> Result<Response<Body>, Failure<S::Error>>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let (session, outcome) = begin(options, &identity).await?;
    if outcome != ClaimOutcome::Claimed {
        return Ok(not_claimed(options, &identity, session, outcome).await?);
    }
    let RequestIdentity { id, fingerprint } = identity;
    let request_tx = RequestTx::new(session.transaction());
    request.extensions_mut().insert(request_tx.clone());
    let response = match service.call(request).await {
        Ok(response) => response,
        Err(error) => {
            drop(request_tx.withdraw());
            session.roll_back().await;
            return Err(Failure::Service(error));
        }
    };
    if !keeps(response.status()) {
        take_from_handler(session, &request_tx)
            .await?
            .roll_back()
            .await;
        return Ok(response.map(body::pass));
    }
    // Read the body before the transaction is taken back: the handler may stream the body from the
    // transaction.
    let (parts, body) = response.into_parts();
    let read = body::read(body, options.response_limit).await;
    let session = take_from_handler(session, &request_tx).await?;
    let body = match read {
        Ok(body) => body,
        Err(unread) => {
            session.roll_back().await;
            return Err(unrecordable(unread).into());
        }
    };
    let recorded = Recorded::of(
        &fingerprint,
        parts.status,
        &parts.headers,
        &*options.keep_header,
        &body,
    );
    let committed: Result<_, Error> = async {
        let client = session.client();
        let ended = match keeps_writes(&parts) {
            true => KEEP,
            false => UNDO,
        };
        session.ends();
        let ended = async {
            let ended = client.batch_execute(ended).await;
            ended.map_err(idem_client::Error::of_allow)
        };
        let recorded = journal::record_and_allow_commit(
            client,
            &id,
            &options.destination,
            &fingerprint,
            &recorded,
        );
        let requests = vec![Pipelined::new(ended).await, Pipelined::new(recorded).await];
        Ok(pipeline_commit(client, requests).await?)
    }
    .await;
    session.finish(committed).await?;
    Ok(Response::from_parts(parts, body::full(body)))
}

/// Begins a transaction with the claim. After a lost connection this is retried, because the
/// handler has not run yet.
async fn begin(
    options: &Options,
    identity: &RequestIdentity,
) -> Result<(Session, ClaimOutcome), Error> {
    let claim = format!(
        "SELECT outcome, {FORBID_COMMIT_COLUMN}
           FROM idem_claim({}, {}, false, decode('{}', 'hex'))",
        identity.id.literal()?,
        options.destination.literal()?,
        identity.fingerprint
    );
    let attempt = || async {
        let session = Session::unprepared(&options.pool, Patience::OfPool).await?;
        let begun =
            session.begin_claim_and_mark(&claim, SAVEPOINT, &options.destination, &identity.id);
        match begun.await {
            Ok(outcome) => Ok((session, outcome)),
            Err(error) => session.finish(Err(error)).await,
        }
    };
    again(Retry::default(), attempt).await
}

/// Returns the response to a request that is not claimed.
async fn not_claimed(
    options: &Options,
    identity: &RequestIdentity,
    session: Session,
    outcome: ClaimOutcome,
) -> Result<Response<Body>, Problem> {
    session.ends();
    rollback_without_wait(session.client());
    let found = match outcome {
        ClaimOutcome::Duplicate => {
            journal::find(session.client(), &identity.id, &options.destination)
                .await
                .map_err(Error::from)
        }
        _ => Ok(None),
    };
    let found = session.finish(found).await;
    let found = found.map_err(|error| Problem::of(&error))?;
    match outcome {
        ClaimOutcome::InProgress => Err(Problem::InProgress),
        ClaimOutcome::Mismatch => Err(Problem::Mismatch),
        _ => replay(found, &identity.fingerprint),
    }
}

/// Takes the transaction back from the handler. Fails if the handler has kept it.
async fn take_from_handler(session: Session, request_tx: &RequestTx) -> Result<Session, Error> {
    drop(request_tx.withdraw());
    match session.ensure_transaction_returned() {
        Ok(()) => Ok(session),
        Err(error) => session.finish(Err(error)).await,
    }
}

/// Returns whether the writes of the handler are committed.
fn keeps_writes(parts: &Parts) -> bool {
    crate::options::keeps_writes(parts.status) || parts.extensions.get::<KeepWrites>().is_some()
}
