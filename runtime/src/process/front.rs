//! The steps before and after the engine: filters, the policy, the id, and the memory of this
//! process.

use std::sync::Arc;

use idem_client::{Destination, Effect, MessageId};
use tracing::{Instrument, info, warn};

use super::Idem;
use crate::{
    Error, Handled, Message, Processed, Settlement,
    filter::{After, Before},
    memory::{Entered, Identity, Known, Turn},
    policy::{Entry, MissingId, OnDuplicate, Policy},
    telemetry::{self, Processing},
};

/// The next step for a message.
#[expect(
    clippy::large_enum_variant,
    reason = "the value is not stored, and most values are the large variant"
)]
pub(crate) enum Prepared {
    /// The message needs no further step. This is its outcome.
    Done(Processed),
    /// The engine processes the message.
    Ready(Ready),
}

/// A message that the engine processes. The result of the engine must be passed to
/// [`Idem::conclude`].
pub(crate) struct Ready {
    /// The message after the filters.
    pub(crate) message: Message,
    pub(crate) destination: Destination,
    pub(crate) entry: Arc<Entry>,
    /// The id to claim; `None` if nothing is claimed in the database.
    pub(crate) id: Option<MessageId>,
    /// The turn to process the message, if the store is the memory of this process.
    turn: Option<Turn>,
    pub(crate) processing: Processing,
}

impl Ready {
    pub(crate) fn policy(&self) -> &Policy {
        &self.entry.policy
    }
}

impl Idem {
    /// Runs all steps before the engine. Does not use the database.
    pub(crate) async fn prepare(&self, message: &Message) -> Result<Prepared, Error> {
        let processing = Processing::begin(message);
        let span = processing.span().clone();
        let message = match self.before_consuming(message).instrument(span).await {
            Ok(message) => message,
            Err(settlement) => {
                return processing
                    .end(Ok(Processed::Stopped { settlement }))
                    .map(Prepared::Done);
            }
        };
        let (destination, entry, id) = match self.identify(&message) {
            Ok(identity) => identity,
            Err(error) => return processing.end(Err(error)).map(Prepared::Done),
        };
        let mut ready = Ready {
            message,
            destination,
            entry,
            id,
            turn: None,
            processing,
        };
        let Some(id) = &ready.id else {
            return Ok(Prepared::Ready(ready));
        };
        let processed = if let Some(memory) = &ready.entry.memory {
            match memory
                .enter(Identity::new(&ready.destination, id), ready.policy().wait)
                .await
            {
                Entered::Duplicate => DUPLICATE,
                Entered::InProgress => Processed::InProgress,
                Entered::New(turn) => {
                    (ready.id, ready.turn) = (None, Some(turn));
                    return Ok(Prepared::Ready(ready));
                }
            }
        } else if let Some((known, identity)) = self.known(&ready)
            && known.contains(&identity)
        {
            DUPLICATE
        } else {
            return Ok(Prepared::Ready(ready));
        };
        let told = self.after_duplicate(&ready, &processed).await;
        ready
            .processing
            .end(told.map(|()| processed))
            .map(Prepared::Done)
    }

    /// Returns the message after the filters.
    ///
    /// An error is the settlement of a filter that stopped the message.
    async fn before_consuming(&self, message: &Message) -> Result<Message, Settlement> {
        let mut message = message.clone();
        for filter in &self.settings().filters {
            match filter.before_consuming(&message).await {
                Before::Continue => {}
                Before::Stop(settlement) => return Err(settlement),
                Before::Replace(other) => message = other,
            }
        }
        Ok(message)
    }

    /// Returns the id of a message according to its policy; `None` if it has no id and the policy
    /// accepts that.
    pub(crate) fn id_of(&self, message: &Message) -> Result<Option<MessageId>, Error> {
        self.identify(message).map(|(_, _, id)| id)
    }

    fn identify(
        &self,
        message: &Message,
    ) -> Result<(Destination, Arc<Entry>, Option<MessageId>), Error> {
        let destination = message.destination()?;
        let entry = Arc::clone(self.settings().policies.of(destination.as_str()));
        let id = match message.stored() {
            // Keep the id of the stored message. A new id would make it a different message, and
            // the value that the id came from may no longer be available.
            Some(stored) if !stored.was_unrouted => Some(stored.id.clone()),
            _ => id_of(message, &destination, &entry.policy)?,
        };
        Ok((destination, entry, id))
    }

    /// Runs all steps after the engine. If the engine returned success, its transaction is
    /// committed.
    pub(crate) async fn conclude(
        &self,
        mut ready: Ready,
        processed: Result<Processed, Error>,
    ) -> Result<Processed, Error> {
        let span = ready.processing.span().clone();
        let answer = async { self.remember(&mut ready, processed?).await }
            .instrument(span)
            .await;
        ready.processing.end(answer)
    }

    async fn remember(&self, ready: &mut Ready, processed: Processed) -> Result<Processed, Error> {
        let processed = match processed {
            // The memory of this process protects the message.
            Processed::Unprotected { effects } if ready.turn.is_some() => {
                Processed::New { effects }
            }
            processed => processed,
        };
        if let Some((known, identity)) = self.known(ready) {
            match &processed {
                Processed::New { .. } | Processed::Duplicate { .. } => known.insert(identity),
                _ => {}
            }
        }
        if let (Processed::New { .. }, Some(stored), Some(id)) =
            (&processed, ready.message.stored(), &ready.id)
        {
            stored.note_claimed(&ready.destination, id);
        }
        if let (Some(turn), Processed::New { .. }) = (ready.turn.take(), &processed) {
            turn.handled();
        }
        self.after_duplicate(ready, &processed).await?;
        Ok(processed)
    }

    /// Returns the memory of duplicates and the identity of this message, if the policy allows the
    /// use of the memory.
    fn known(&self, ready: &Ready) -> Option<(&Known, Identity)> {
        let policy = ready.policy();
        let asks_database =
            policy.on_duplicate == OnDuplicate::Effects || policy.fingerprint || policy.expire;
        match (&self.settings().known, &ready.id) {
            (Some(known), Some(id)) if !asks_database => {
                Some((known, Identity::new(&ready.destination, id)))
            }
            _ => None,
        }
    }

    async fn after_duplicate(&self, ready: &Ready, processed: &Processed) -> Result<(), Error> {
        let Processed::Duplicate { effects } = processed else {
            return Ok(());
        };
        match (ready.policy().on_duplicate, &self.settings().on_duplicate) {
            (OnDuplicate::Log, _) => {
                let id = ready.id.as_ref().map(MessageId::to_string);
                info!(
                    destination = ready.destination.as_str(),
                    message_id = id,
                    "a duplicate is acknowledged"
                );
                Ok(())
            }
            (OnDuplicate::Effects, Some(callback)) => {
                callback(ready.message.clone(), effects.clone())
                    .await
                    .map_err(Error::Handler)
            }
            _ => Ok(()),
        }
    }

    /// Returns the effects of a handler after the filters, with the trace context of the message.
    pub(crate) async fn filter_effects(
        &self,
        message: &Message,
        mut effects: Vec<Effect>,
    ) -> Handled {
        for filter in self.settings().filters.iter().rev() {
            match filter.on_consumed(message, &effects).await {
                After::Continue => {}
                After::Replace(others) => effects = others,
                After::Stop(error) => return Err(error),
            }
        }
        telemetry::pass_on(message, &mut effects);
        Ok(effects)
    }
}

const DUPLICATE: Processed = Processed::Duplicate {
    effects: Vec::new(),
};

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
