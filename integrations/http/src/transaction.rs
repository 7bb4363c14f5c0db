//! Processes a request in the transaction that claims it.

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
    IdempotencyLayer,
    body::{self, Body, BoxError},
    extensions::{KeepWrites, RequestTx},
    journal,
    problem::Problem,
    recorded::Recorded,
    request_identity::{Failure, Handled, RequestIdentity, handle, replay},
    statuses,
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
    layer: &IdempotencyLayer,
    identity: RequestIdentity,
    mut request: Request<Body>,
    mut service: S,
) -> Result<Response<Body>, Failure<S::Error>>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let (session, outcome) = begin(layer, &identity).await?;
    if outcome != ClaimOutcome::Claimed {
        return Ok(not_claimed(layer, &identity, session, outcome).await?);
    }
    let RequestIdentity { id, fingerprint } = identity;
    let request_tx = RequestTx::new(session.transaction());
    request.extensions_mut().insert(request_tx.clone());
    let handled = handle(layer, &mut service, request).await;
    if let Err(Failure::Service(error)) = handled {
        drop(request_tx.withdraw());
        session.roll_back().await;
        return Err(Failure::Service(error));
    }
    // The body is read by now, before the transaction is taken back: the handler may stream the
    // body from the transaction.
    let session = take_from_handler(session, &request_tx).await?;
    let (parts, body) = match handled {
        Ok(Handled::ToRecord(parts, body)) => (parts, body),
        Ok(Handled::Passed(response)) => {
            session.roll_back().await;
            return Ok(response);
        }
        Err(failure) => {
            session.roll_back().await;
            return Err(failure);
        }
    };
    let recorded = Recorded::of(&fingerprint, &parts, &*layer.keep_header, &body);
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
            &layer.destination,
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
    layer: &IdempotencyLayer,
    identity: &RequestIdentity,
) -> Result<(Session, ClaimOutcome), Error> {
    let claim = format!(
        "SELECT outcome, {FORBID_COMMIT_COLUMN}
           FROM idem_claim({}, {}, false, decode('{}', 'hex'))",
        identity.id.literal()?,
        layer.destination.literal()?,
        identity.fingerprint
    );
    let attempt = || async {
        let session = Session::unprepared(&layer.pool, Patience::OfPool).await?;
        let begun =
            session.begin_claim_and_mark(&claim, SAVEPOINT, &layer.destination, &identity.id);
        match begun.await {
            Ok(outcome) => Ok((session, outcome)),
            Err(error) => session.finish(Err(error)).await,
        }
    };
    again(Retry::default(), attempt).await
}

/// Returns the response to a request that is not claimed.
async fn not_claimed(
    layer: &IdempotencyLayer,
    identity: &RequestIdentity,
    session: Session,
    outcome: ClaimOutcome,
) -> Result<Response<Body>, Problem> {
    session.ends();
    rollback_without_wait(session.client());
    let found = match outcome {
        ClaimOutcome::Duplicate => {
            journal::find(session.client(), &identity.id, &layer.destination)
                .await
                .map_err(Error::from)
        }
        _ => Ok(None),
    };
    let found = session.finish(found).await?;
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
    statuses::keeps_writes(parts.status) || parts.extensions.get::<KeepWrites>().is_some()
}
