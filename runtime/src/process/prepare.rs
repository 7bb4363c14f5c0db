//! What happens to a message before and after the way that processes it: the filter, the identity,
//! the memory of this process, and the callback for duplicates.

use std::sync::Arc;

use idem_client::{Destination, MessageId};
use tracing::{Instrument, info, warn};

use super::{processed::ProcessResult, settings::Settings};
use crate::{
    Error, Message, Processed, Settlement,
    filter::Before,
    memory::{Entered, Identity, Turn},
    panics::{Panicked, unwinding},
    policy::{Entry, MissingId, OnDuplicate, Policy},
    telemetry::Processing,
};

/// The destination of a message, the entry of its policy, and its id; `None` if it has no id and
/// the policy accepts that.
pub(crate) type Identified = (Destination, Arc<Entry>, Option<MessageId>);

/// A message to process, after the filters.
pub(crate) struct Ready {
    pub(crate) message: Message,
    pub(crate) destination: Destination,
    pub(crate) entry: Arc<Entry>,
    /// The id to claim; `None` if nothing is claimed in the database.
    pub(crate) id: Option<MessageId>,
    /// The turn to process the message, if the store is the memory of this process.
    pub(crate) turn: Option<Turn>,
    pub(crate) processing: Processing,
}

impl Ready {
    pub(crate) fn policy(&self) -> &Policy {
        &self.entry.policy
    }
}

/// The step before the way. idem sends no statement in it. Filters and callbacks of the user may
/// send statements. `Err` is the result of a message that needs no further step.
pub(super) async fn prepare(
    settings: &Settings,
    message: &Message,
) -> Result<Ready, ProcessResult> {
    let processing = Processing::begin(message);
    let span = processing.span().clone();
    let filtered = filter_message(settings, message).instrument(span);
    let message = match filtered.await {
        Ok(message) => message,
        Err(settlement) => return Err(processing.end(Ok(Processed::Stopped { settlement }))),
    };
    let mut ready = match identify(settings, &message) {
        Ok((destination, entry, id)) => Ready {
            message,
            destination,
            entry,
            id,
            turn: None,
            processing,
        },
        Err(error) => return Err(processing.end(Err(error))),
    };
    let Some(processed) = recall(&mut ready).await else {
        return Ok(ready);
    };
    let concluded = after_duplicate(settings, &ready, &processed).await;
    Err(ready.processing.end(concluded.map(|()| processed)))
}

/// The step after the way. If the result is `New` or `Unprotected`, its transaction is committed.
pub(super) async fn conclude(
    settings: &Settings,
    mut ready: Ready,
    result: ProcessResult,
) -> ProcessResult {
    let span = ready.processing.span().clone();
    let concluded = async {
        let processed = remember(&mut ready, result?);
        after_duplicate(settings, &ready, &processed).await?;
        Ok(processed)
    };
    let result = concluded.instrument(span).await;
    ready.processing.end(result)
}

/// Like [`prepare`]. A panic of the user's code is an error of the message.
pub(super) async fn prepare_caught(
    settings: &Settings,
    message: &Message,
) -> Result<Ready, ProcessResult> {
    unwinding(prepare(settings, message))
        .await
        .unwrap_or_else(|panic| Err(Err(panicked(panic))))
}

/// Like [`conclude`]. A panic of a callback is an error of the message.
pub(super) async fn conclude_caught(
    settings: &Settings,
    ready: Ready,
    result: ProcessResult,
) -> ProcessResult {
    unwinding(conclude(settings, ready, result))
        .await
        .unwrap_or_else(|panic| Err(panicked(panic)))
}

/// Returns the error of a message whose filter, id function or callback has panicked.
fn panicked(panic: Panicked) -> Error {
    Error::Handler(panic.into())
}

/// Returns the message after the filters.
///
/// If a filter stopped the message, `Err` contains the settlement that the filter returned.
async fn filter_message(settings: &Settings, message: &Message) -> Result<Message, Settlement> {
    let mut message = message.clone();
    for filter in &settings.filters {
        match filter.before_consuming(&message).await {
            Before::Continue => {}
            Before::Stop(settlement) => return Err(settlement),
            Before::Replace(other) => message = other.in_place_of(&message),
        }
    }
    Ok(message)
}

/// Returns the destination, the policy and the id of a message.
pub(super) fn identify(settings: &Settings, message: &Message) -> Result<Identified, Error> {
    let destination = message.destination()?;
    let entry = Arc::clone(settings.policies.of(destination.as_str()));
    let id = match message.stored() {
        // Keep the id of the stored message. A new id would make it a different message, and the
        // value that the id came from may no longer be available.
        Some(stored) if !stored.was_unrouted => Some(stored.held.id().clone()),
        _ => id_of(message, &destination, &entry.policy)?,
    };
    Ok((destination, entry, id))
}

fn id_of(
    message: &Message,
    destination: &Destination,
    policy: &Policy,
) -> Result<Option<MessageId>, Error> {
    let id = policy.id.id_of(message)?;
    if id.is_none() {
        match policy.missing_id {
            MissingId::Reject => {
                return Err(Error::MissingId {
                    destination: destination.to_string(),
                    strategy: policy.id.to_string(),
                });
            }
            MissingId::Unprotected => warn!(
                destination = destination.as_str(),
                strategy = %policy.id,
                "a message without an id is processed unprotected: \
                 a duplicate of it would take effect again"
            ),
        }
    }
    Ok(id)
}

/// Looks the message up in the memory of this process, which decides whether the message is new.
/// Returns the outcome of a message that must not be processed now.
///
/// A new message gets a turn, and nothing is claimed in the database.
async fn recall(ready: &mut Ready) -> Option<Processed> {
    let memory = ready.entry.memory.as_ref()?;
    let identity = Identity::new(&ready.destination, ready.id.as_ref()?);
    match memory.enter(identity, ready.policy().wait).await {
        Entered::Duplicate => Some(Processed::duplicate()),
        Entered::InProgress => Some(Processed::InProgress),
        Entered::New(turn) => {
            (ready.id, ready.turn) = (None, Some(turn));
            None
        }
    }
}

/// Remembers a message whose transaction is committed. Returns its outcome.
fn remember(ready: &mut Ready, processed: Processed) -> Processed {
    let processed = match processed {
        // The message has no claim in the database, but the memory of this process detects its
        // duplicates.
        Processed::Unprotected { effects } if ready.turn.is_some() => Processed::New { effects },
        processed => processed,
    };
    if let (Processed::New { .. }, Some(stored), Some(id)) =
        (&processed, ready.message.stored(), &ready.id)
    {
        stored.note_claimed(&ready.destination, id);
    }
    if let (Some(turn), Processed::New { .. }) = (ready.turn.take(), &processed) {
        turn.handled();
    }
    processed
}

/// Does what the policy requires for a duplicate: nothing, a log message, or the callback.
async fn after_duplicate(
    settings: &Settings,
    ready: &Ready,
    processed: &Processed,
) -> Result<(), Error> {
    let Processed::Duplicate { effects } = processed else {
        return Ok(());
    };
    match (ready.policy().on_duplicate, &settings.on_duplicate) {
        (OnDuplicate::Log, _) => {
            let id = ready.id.as_ref().map(MessageId::to_string);
            info!(
                destination = ready.destination.as_str(),
                message_id = id,
                "a duplicate is acknowledged"
            );
            Ok(())
        }
        (OnDuplicate::Effects, Some(callback)) => callback(ready.message.clone(), effects.clone())
            .await
            .map_err(Error::Handler),
        _ => Ok(()),
    }
}
