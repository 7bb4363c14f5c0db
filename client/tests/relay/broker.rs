//! A broker in memory, with faults.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_client::{OutgoingMessage, PublishError, Publisher};
use uuid::Uuid;

use crate::support::until;

/// What the broker does with one effect.
pub enum Fate {
    Take,
    /// Takes it after so long.
    Slowly(Duration),
    Reject,
    Refuse,
    Unavailable,
    /// The topic has no place.
    NoPlace,
    /// Never answers.
    Silence,
}

/// An effect that the broker has confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub id: Uuid,
    pub key: Option<String>,
    pub says: String,
}

type Rule = Box<dyn FnMut(&str) -> Fate + Send>;

/// Cheap to clone: what one clone takes all know.
#[derive(Clone, Default)]
pub struct Broker(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    rule: Option<Rule>,
    attempts: HashMap<String, u32>,
    taken: Vec<Taken>,
    /// The keys of what is under way; who adds one twice breaks the order.
    under_way: HashSet<String>,
    overlaps: Vec<String>,
    most_under_way: usize,
    now_under_way: usize,
    /// It accepts no connection.
    is_away: bool,
    /// It accepts connections and lacks this.
    lacks: Option<String>,
}

impl Broker {
    /// From now on this says what becomes of an effect that says so.
    pub fn rule(&self, rule: impl FnMut(&str) -> Fate + Send + 'static) {
        self.state().rule = Some(Box::new(rule));
    }

    /// From now on it accepts connections or does not.
    pub fn is_away(&self, is_away: bool) {
        self.state().is_away = is_away;
    }

    /// From now on it accepts connections, and lacks what this says.
    pub fn lacks(&self, place: Option<&str>) {
        let mut state = self.state();
        state.is_away = false;
        state.lacks = place.map(str::to_owned);
    }

    pub fn taken(&self) -> Vec<Taken> {
        self.state().taken.clone()
    }

    /// What was taken of one key, in that order.
    pub fn of_key(&self, key: &str) -> Vec<String> {
        let of_key = |taken: &Taken| taken.key.as_deref() == Some(key);
        self.taken()
            .into_iter()
            .filter(of_key)
            .map(|taken| taken.says)
            .collect()
    }

    pub fn attempts(&self, says: &str) -> u32 {
        self.state().attempts.get(says).copied().unwrap_or(0)
    }

    /// How many effects were under way at once.
    pub fn most_under_way(&self) -> usize {
        self.state().most_under_way
    }

    /// Effects that were published while another one of their key was under way.
    pub fn overlaps(&self) -> Vec<String> {
        self.state().overlaps.clone()
    }

    pub async fn until_taken(&self, how_many: usize) {
        until(&format!("{how_many} effects are published"), async || {
            self.state().taken.len() >= how_many
        })
        .await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, says: &str, key: Option<&str>) -> Fate {
        let mut state = self.state();
        *state.attempts.entry(says.to_owned()).or_default() += 1;
        if let Some(key) = key
            && !state.under_way.insert(key.to_owned())
        {
            state.overlaps.push(says.to_owned());
        }
        state.now_under_way += 1;
        state.most_under_way = state.most_under_way.max(state.now_under_way);
        if state.is_away {
            return Fate::Unavailable;
        }
        state.rule.as_mut().map_or(Fate::Take, |rule| rule(says))
    }
}

/// One effect is under way.
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
        let says: String = serde_json::from_slice(&message.payload).unwrap();
        let fate = self.begin(&says, message.key.as_deref());
        let _under_way = UnderWay(self, message.key.as_deref());
        // So that effects can overlap.
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
            says,
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
