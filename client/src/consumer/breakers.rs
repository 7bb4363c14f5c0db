//! Failures of the environment pause the consumer or one of its routes; the same failure of one message, while
//! others of its route succeed, is the message's.

use std::time::Duration;

use deadpool_postgres::Pool;
use moka::sync::Cache;
use tokio::time::{Instant, sleep_until};

use super::{
    breaker::{Breaker, FIRST_PAUSE},
    probe::probe,
    routes::Table,
    status::Status,
};
use crate::{Destination, Error, error::causes};

/// So many messages are remembered that met a failure of the environment.
const SUSPECTS: u64 = 10_000;
const SUSPECTED_FOR: Duration = Duration::from_secs(3600);

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Culprit {
    Message,
    /// The message may come again after this time.
    Environment {
        after: Duration,
    },
}

/// One attempt at a message of a route.
#[derive(Clone, Copy)]
pub(super) struct Attempted {
    /// The same at every delivery of the message.
    pub(super) identity: u64,
    pub(super) route: usize,
}

/// The breaker of the database, and one for each route.
pub(super) struct Breakers {
    all: Breaker,
    routes: Vec<(Destination, Breaker)>,
    /// When each of these messages first met a failure of the environment.
    suspects: Cache<u64, Instant>,
    status: Status,
}

impl Breakers {
    /// Nothing is fetched before a first probe has succeeded.
    pub(super) fn new(routes: &Table, status: Status) -> Self {
        let routes = routes
            .destinations()
            .map(|destination| (destination.clone(), Breaker::closed()));
        Self {
            all: Breaker::open(),
            routes: routes.collect(),
            suspects: Cache::builder().max_capacity(SUSPECTS).time_to_idle(SUSPECTED_FOR).build(),
            status,
        }
    }

    // What happened to a message

    /// An attempt at a message of a route failed with an error of the environment.
    ///
    /// When a probe has succeeded since the message first failed, and so has another message of its route, the
    /// message is to blame.
    pub(super) fn judge(&self, attempted: Attempted, error: &Error) -> Culprit {
        let Some((destination, breaker)) = self.routes.get(attempted.route) else {
            return Culprit::Message;
        };
        match self.suspects.get(&attempted.identity) {
            Some(first) if breaker.has_succeeded_since(first) && self.all.has_succeeded_since(first) => {
                return Culprit::Message;
            }
            Some(_) => {}
            None => self.suspects.insert(attempted.identity, Instant::now()),
        }
        let pause = match error {
            Error::Handler(_) => {
                let (pause, is_new) = breaker.trip();
                self.note_paused_destination(destination, error, pause, is_new);
                pause
            }
            _ => self.trip_all(error),
        };
        // Others go first when the pause is over: their success tells whether this message is to blame.
        Culprit::Environment {
            after: pause.max(FIRST_PAUSE) * 2,
        }
    }

    /// The database serves no message. Returns the pause.
    pub(super) fn trip_all(&self, error: &Error) -> Duration {
        let (pause, is_new) = self.all.trip();
        self.note_paused(error, pause, is_new);
        pause
    }

    fn note_paused_destination(&self, destination: &Destination, error: &Error, pause: Duration, is_new: bool) {
        let error = causes(error);
        if is_new {
            tracing::warn!(error, %destination, ?pause, "the environment fails: this destination is paused");
        } else {
            tracing::debug!(error, %destination, ?pause, "the environment still fails");
        }
        self.status.paused_destination(destination, Some(error));
    }

    fn note_paused(&self, error: &Error, pause: Duration, is_new: bool) {
        let error = causes(error);
        if is_new {
            tracing::warn!(error, ?pause, "the database does not serve: nothing is fetched until it does");
        } else {
            tracing::debug!(error, ?pause, "the database does not serve yet");
        }
        self.status.paused(Some(error));
    }

    /// An attempt that began at this moment ended without a failure. `is_handled`: the handler worked, and it
    /// is committed.
    pub(super) fn succeeded(&self, route: usize, began: Instant, is_handled: bool) {
        self.all.succeeded(began);
        let Some((destination, breaker)) = self.routes.get(route) else {
            return;
        };
        if is_handled && breaker.succeeded(began) {
            tracing::info!(%destination, "this destination goes on");
            self.status.paused_destination(destination, None);
        }
    }

    /// The message has ended one way or the other.
    pub(super) fn forget(&self, identity: impl FnOnce() -> u64) {
        if self.suspects.entry_count() > 0 {
            self.suspects.invalidate(&identity());
        }
    }

    // What may be tried

    /// Whether no message can be tried now.
    pub(super) fn block_all(&self) -> bool {
        self.all.due().is_some() || self.routes.iter().all(|(_, breaker)| breaker.due().is_some())
    }

    /// How long no message of this route can be tried.
    pub(super) fn pause_of(&self, route: usize) -> Option<Duration> {
        self.routes.get(route)?.1.pause()
    }

    /// Waits until something can be tried. Cancel safe; called by one worker at a time.
    pub(super) async fn wait(&self, pool: &Pool) {
        while self.block_all() {
            let routes = self.routes.iter().filter_map(|(_, breaker)| breaker.due()).min();
            sleep_until(self.all.due().or(routes).unwrap_or_else(Instant::now)).await;
            self.probe_due(pool).await;
        }
    }

    /// When the next probe of a route is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.routes.iter().filter_map(|(_, breaker)| breaker.due()).min()
    }

    /// Probes the database if a breaker is due, and closes each that is.
    pub(super) async fn probe_due(&self, pool: &Pool) {
        let now = Instant::now();
        let is_due = |breaker: &Breaker| breaker.due().is_some_and(|due| due <= now);
        let routes: Vec<_> = self.routes.iter().filter(|(_, breaker)| is_due(breaker)).collect();
        let is_all_due = is_due(&self.all);
        let Some((destination, _)) = routes.first().copied().or(self.routes.first()) else {
            return;
        };
        if routes.is_empty() && !is_all_due {
            return;
        }
        match probe(pool, destination).await {
            Ok(()) => {
                if self.all.close() {
                    tracing::info!("the database serves again");
                }
                self.status.paused(None);
                for (_, breaker) in routes {
                    breaker.close();
                }
            }
            Err(error) => {
                let is_new = self.all.probe_failed();
                self.note_paused(&error, self.all.pause().unwrap_or_default(), is_new);
                for (_, breaker) in routes {
                    breaker.probe_failed();
                }
            }
        }
    }
}
