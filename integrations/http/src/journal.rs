//! Records a response as an entry in the journal of the request's identity. The entry is kept as
//! long as the claim.

use idem_client::{
    Destination, Error, Executor, MessageId,
    journal::{CallState, begin_call, calls, finish_call},
    pipeline::ALLOW_COMMIT_COLUMN,
};

use tokio_postgres::types::{Json, Type};

use crate::{fingerprint::Fingerprint, recorded::Recorded};

const STEP: &str = "http-response";

/// Begins the journal entry. Fails with 23000 if the entry was begun for another request.
pub(crate) async fn begin(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
    fingerprint: &Fingerprint,
) -> Result<(), Error> {
    // The returned state of the entry is not needed: `find` looks up the recorded response.
    let begun = begin_call(
        executor,
        id,
        destination,
        STEP,
        Some(&fingerprint.request()),
    )
    .await;
    begun.map(drop)
}

/// Completes the journal entry with the response.
pub(crate) async fn finish(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
    response: &Recorded,
) -> Result<(), Error> {
    let response = serde_json::to_value(response).map_err(idem_client::Error::Encode)?;
    finish_call(executor, id, destination, STEP, Some(&response)).await
}

/// Begins and completes the journal entry, and then a plain COMMIT succeeds. It is one statement, so
/// that nothing is recorded if the handler has ended its transaction.
pub(crate) async fn record_and_allow_commit(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
    fingerprint: &Fingerprint,
    response: &Recorded,
) -> Result<(), Error> {
    let sql = format!(
        "SELECT {ALLOW_COMMIT_COLUMN}, idem_begin_call($1, $2, $3, $4),
                idem_finish_call($1, $2, $3, $5)"
    );
    let (request, response) = (fingerprint.request(), Json(response));
    let parameters = [
        id.parameter(),
        destination.parameter(),
        (&STEP as _, Type::TEXT),
        (&request as _, Type::JSONB),
        (&response as _, Type::JSON),
    ];
    match executor.fetch_all(&sql, &parameters).await {
        Err(Error::Database(error)) => Err(Error::of_allow(error)),
        recorded => recorded.map(drop),
    }
}

/// Returns the recorded response, or `None` if there is none.
pub(crate) async fn find(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
) -> Result<Option<Recorded>, Error> {
    let steps = calls(executor, id, destination).await?;
    let is_record = |state, step: &str| state == CallState::Done && step == STEP;
    let found = steps
        .into_iter()
        .find(|call| is_record(call.state, &call.step));
    let response = found.and_then(|call| call.response);
    response
        .map(serde_json::from_value)
        .transpose()
        .map_err(|error| Error::Unexpected(format!("an unreadable recorded response: {error}")))
}
