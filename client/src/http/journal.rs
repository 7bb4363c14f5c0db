//! The record of a response: a step in the journal of the request's identity, which lives as long
//! as its claim.

use tokio_postgres::GenericClient;

use crate::{
    Destination, Error, MessageId,
    http::{fingerprint::Fingerprint, recorded::Recorded},
    journal::{CallState, begin_call, calls, finish_call},
};

const STEP: &str = "http-response";

/// Begins the step. 23000 when it was begun for another request.
pub(crate) async fn begin(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
    fingerprint: &Fingerprint,
) -> Result<(), Error> {
    // The response itself says what became of it.
    let begun = begin_call(client, id, destination, STEP, Some(&fingerprint.request())).await;
    begun.map(drop)
}

/// Ends it with the response.
pub(crate) async fn finish(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
    response: &Recorded,
) -> Result<(), Error> {
    let response = serde_json::to_value(response).map_err(Error::Encode)?;
    finish_call(client, id, destination, STEP, Some(&response)).await
}

/// The recorded response; `None` when there is none.
pub(crate) async fn find(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
) -> Result<Option<Recorded>, Error> {
    let steps = calls(client, id, destination).await?;
    let is_record = |state, step: &str| state == CallState::Done && step == STEP;
    let found = steps
        .into_iter()
        .find(|call| is_record(call.state, &call.step));
    let response = found.and_then(|call| call.response);
    response
        .map(serde_json::from_value)
        .transpose()
        .map_err(|error| Error::Unexpected(format!("a recorded response: {error}")))
}
