//! Records a response as an entry in the journal of the request's identity. The entry is kept as
//! long as the claim.

use idem_client::{
    Destination, Error, Executor, MessageId,
    journal::{CallState, begin_call, calls, finish_call},
};

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
