//! What comes before the engine, and what follows it: filters, the policy, the id, and what this
//! process remembers.

use std::sync::Arc;

use tracing::{Instrument, info, warn};

use super::Idem;
use crate::{
    After, Before, Destination, Effect, Error, Handled, Message, MessageId, MissingId, OnDuplicate,
    Processed, Settlement, Style,
    memory::{Entered, Identity, Known, Turn},
    policy::{Entry, Policy},
    telemetry::{self, Processing},
};

/// What is to be done with a message.
#[expect(
    clippy::large_enum_variant,
    reason = "nobody keeps it, and most are the large one"
)]
pub(crate) enum Prepared {
    /// Nothing more: this is the answer.
    Done(Processed),
    /// It goes to the engine.
    Ready(Ready),
}

/// A message on its way to the engine. Whatever becomes of it there, [`Idem::conclude`] is told.
pub(crate) struct Ready {
    /// The message as the filters have left it.
    pub(crate) message: Message,
    pub(crate) destination: Destination,
    pub(crate) entry: Arc<Entry>,
    /// The id to claim; `None` where nothing is claimed in the database.
    pub(crate) id: Option<MessageId>,
    /// Held while the message is handled, where the memory is this process.
    turn: Option<Turn>,
    pub(crate) processing: Processing,
}

impl Ready {
    pub(crate) fn policy(&self) -> &Policy {
        &self.entry.policy
    }
}

impl Idem {
    /// Everything before the engine. Nothing of the database is touched.
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

    /// What the filters make of a message; an error is what one of them that stops it says to tell
    /// the broker.
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

    /// What a message is known by, as its policy has it; `None` where it has no id and may pass
    /// without.
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
            // Where it comes from is gone, and it would be another message under another id.
            Some(stored) if !stored.was_unrouted => Some(stored.id.clone()),
            _ => id_of(message, &destination, &entry.policy)?,
        };
        Ok((destination, entry, id))
    }

    /// Everything after the engine, which has committed when it answers.
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
            // The memory of this process protects it.
            Processed::Unprotected { effects } if ready.turn.is_some() => {
                Processed::New { effects }
            }
            processed => processed,
        };
        if let Some((known, identity)) = self.known(ready) {
            match &processed {
                // Who only checks has claimed nothing.
                Processed::New { .. } if ready.policy().style == Style::CheckOnly => {}
                Processed::New { .. } | Processed::Duplicate { .. } => known.insert(identity),
                _ => {}
            }
        }
        if let (Processed::New { .. }, Some(stored), Some(id)) =
            (&processed, ready.message.stored(), &ready.id)
            && ready.policy().style != Style::CheckOnly
        {
            stored.note_claimed(&ready.destination, id);
        }
        if let (Some(turn), Processed::New { .. }) = (ready.turn.take(), &processed) {
            turn.handled();
        }
        self.after_duplicate(ready, &processed).await?;
        Ok(processed)
    }

    /// Where it is known that this message is a duplicate, should it be allowed to say so.
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

    /// What the filters make of the effects of a handler, which go on the trace of the message.
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
                "a message without an id is processed unprotected: a duplicate of it would take effect again"
            ),
        }
    }
    Ok(id)
}
