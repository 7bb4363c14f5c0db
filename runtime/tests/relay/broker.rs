//! An in-memory broker that can produce faults.

use std::{
    collections::{HashMap, HashSet},
    future::ready,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_runtime::{OutgoingMessage, PublishError, Publisher};
use idem_testkit::until;
use uuid::Uuid;

/// The response of the broker to one effect.
pub enum Fate {
    Take,
    /// Confirms the effect after this time.
    Slowly(Duration),
    Reject,
    Refuse,
    Unavailable,
    /// Fails because the topic has no queue.
    NoPlace,
    /// Never responds.
    Silence,
}

/// An effect that the broker has confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub id: Uuid,
    pub key: Option<String>,
    pub payload: String,
}

type Rule = Box<dyn FnMut(&str) -> Fate + Send>;

/// The broker. Its clones share the state.
#[derive(Clone, Default)]
pub struct Broker(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    rule: Option<Rule>,
    attempts: HashMap<String, u32>,
    taken: Vec<Taken>,
    /// The keys of the effects that are being published. If a second effect with one of these keys
    /// begins, the order of the key is violated.
    under_way: HashSet<String>,
    overlaps: Vec<String>,
    most_under_way: usize,
    now_under_way: usize,
    /// True if the broker accepts no connection.
    is_away: bool,
    /// The reason with which `check` fails while the broker accepts connections.
    lacks: Option<String>,
}

impl Broker {
    /// Sets a function that returns the response of the broker to an effect with the given payload.
    pub fn rule(&self, rule: impl FnMut(&str) -> Fate + Send + 'static) {
        self.state().rule = Some(Box::new(rule));
    }

    /// If `is_away` is true, the broker rejects all connections.
    pub fn is_away(&self, is_away: bool) {
        self.state().is_away = is_away;
    }

    /// Makes the broker accept connections. If a reason is given, `check` still fails with this
    /// reason.
    pub fn lacks(&self, place: Option<&str>) {
        let mut state = self.state();
        state.is_away = false;
        state.lacks = place.map(str::to_owned);
    }

    pub fn taken(&self) -> Vec<Taken> {
        self.state().taken.clone()
    }

    /// Returns the payloads of the confirmed effects of a key, in order.
    pub fn of_key(&self, key: &str) -> Vec<String> {
        let of_key = |taken: &Taken| taken.key.as_deref() == Some(key);
        self.taken()
            .into_iter()
            .filter(of_key)
            .map(|taken| taken.payload)
            .collect()
    }

    pub fn attempts(&self, payload: &str) -> u32 {
        self.state().attempts.get(payload).copied().unwrap_or(0)
    }

    /// Returns the highest number of effects that were published at the same time.
    pub fn most_under_way(&self) -> usize {
        self.state().most_under_way
    }

    /// Returns the payloads of effects that were published while another effect of their key was
    /// being published.
    pub fn overlaps(&self) -> Vec<String> {
        self.state().overlaps.clone()
    }

    pub async fn until_taken(&self, how_many: usize) {
        let broker = self.clone();
        let is_taken = move || ready(broker.state().taken.len() >= how_many);
        until(&format!("{how_many} effects are published"), is_taken).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, payload: &str, key: Option<&str>) -> Fate {
        let mut state = self.state();
        *state.attempts.entry(payload.to_owned()).or_default() += 1;
        if let Some(key) = key
            && !state.under_way.insert(key.to_owned())
        {
            state.overlaps.push(payload.to_owned());
        }
        state.now_under_way += 1;
        state.most_under_way = state.most_under_way.max(state.now_under_way);
        if state.is_away {
            return Fate::Unavailable;
        }
        state.rule.as_mut().map_or(Fate::Take, |rule| rule(payload))
    }
}

/// An effect that is being published.
struct UnderWay<'b>(&'b Broker, Option<&'b str>);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.now_under_way -= 1;
        if let Some(key) = self.1 {
            state.under_way.remove(key);
        }
    }
}

impl Publisher for Broker {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        let payload: String = serde_json::from_slice(&message.payload).unwrap();
        let fate = self.begin(&payload, message.key.as_deref());
        let _under_way = UnderWay(self, message.key.as_deref());
        // Yield here, so that publishing can overlap with the publishing of other effects.
        tokio::task::yield_now().await;
        match fate {
            Fate::Take => {}
            Fate::Slowly(time) => tokio::time::sleep(time).await,
            Fate::Reject => return Err(PublishError::Rejected("the queue is full".into())),
            Fate::Refuse => return Err(PublishError::Permanent("no such exchange".into())),
            Fate::Unavailable => {
                return Err(PublishError::Unavailable("connection refused".into()));
            }
            Fate::NoPlace => return Err(PublishError::TopicUnavailable("no such queue".into())),
            Fate::Silence => std::future::pending().await,
        }
        self.state().taken.push(Taken {
            id: message.message_id,
            key: message.key.clone(),
            payload,
        });
        Ok(())
    }

    async fn check(&self) -> Result<(), PublishError> {
        let state = self.state();
        match &state.lacks {
            _ if state.is_away => Err(PublishError::Unavailable("connection refused".into())),
            Some(lacks) => Err(PublishError::TopicUnavailable(lacks.as_str().into())),
            None => Ok(()),
        }
    }
}
