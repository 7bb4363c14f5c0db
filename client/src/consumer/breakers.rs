//! Failures of the environment pause the consumer or one of its destinations. The same failure of
//! one message, while others of its destination succeed, is the message's.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

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
pub(super) struct Attempted<'m> {
    /// The same at every delivery of the message.
    pub(super) identity: u64,
    pub(super) message_id: Option<&'m str>,
    pub(super) route: usize,
}

/// The breaker of the database, and one for each destination.
pub(super) struct Breakers {
    all: Breaker,
    destinations: Vec<(Destination, Breaker)>,
    /// The place of each route's destination, by the number of the route.
    routes: Vec<usize>,
    /// When each of these messages first met a failure of the environment, or was last counted for
    /// one.
    suspects: Cache<u64, Instant>,
    /// Whether there has ever been one. Mostly there is none, and hashing a payload takes time.
    has_suspects: AtomicBool,
    status: Status,
}

impl Breakers {
    /// Nothing is fetched before a first probe has succeeded.
    pub(super) fn new(table: &Table, status: Status) -> Self {
        let mut destinations: Vec<(Destination, Breaker)> = Vec::new();
        let mut routes = Vec::new();
        for destination in table.destinations() {
            let known = destinations
                .iter()
                .position(|(other, _)| other == destination);
            routes.push(known.unwrap_or(destinations.len()));
            if known.is_none() {
                destinations.push((destination.clone(), Breaker::closed()));
            }
        }
        Self {
            all: Breaker::open(),
            destinations,
            routes,
            suspects: Cache::builder()
                .max_capacity(SUSPECTS)
                .time_to_idle(SUSPECTED_FOR)
                .build(),
            has_suspects: AtomicBool::new(false),
            status,
        }
    }

    fn of_route(&self, route: usize) -> Option<&(Destination, Breaker)> {
        self.destinations.get(*self.routes.get(route)?)
    }

    // What happened to a message

    /// An attempt at a message of a route failed with an error of the environment.
    ///
    /// The message is to blame when, since it failed so last, a probe has succeeded and so has
    /// another message of its destination.
    pub(super) fn judge(&self, attempted: Attempted<'_>, error: &Error) -> Culprit {
        let Some((destination, breaker)) = self.of_route(attempted.route) else {
            return Culprit::Message;
        };
        self.has_suspects.store(true, Ordering::Relaxed);
        match self.suspects.get(&attempted.identity) {
            Some(last)
                if breaker.has_succeeded_since(last) && self.all.has_succeeded_since(last) =>
            {
                // The next failure needs a success of its own to be counted.
                self.suspects.insert(attempted.identity, Instant::now());
                return Culprit::Message;
            }
            Some(_) => {}
            None => self.suspects.insert(attempted.identity, Instant::now()),
        }
        let pause = match error {
            Error::Handler(_) => {
                let (pause, is_new) = breaker.trip();
                self.note_paused_destination(
                    destination,
                    attempted.message_id,
                    error,
                    pause,
                    is_new,
                );
                pause
            }
            _ => self.trip_all(error),
        };
        // Others go first when the pause is over: their success tells whether this message is to
        // blame.
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

    fn note_paused_destination(
        &self,
        destination: &Destination,
        message_id: Option<&str>,
        error: &Error,
        pause: Duration,
        is_new: bool,
    ) {
        let error = causes(error);
        if is_new {
            tracing::warn!(error, %destination, message_id, ?pause, "the environment fails: this destination is paused");
        } else {
            tracing::debug!(error, %destination, message_id, ?pause, "the environment still fails");
        }
        self.status.paused_destination(destination, Some(error));
    }

    fn note_paused(&self, error: &Error, pause: Duration, is_new: bool) {
        let error = causes(error);
        if is_new {
            tracing::warn!(
                error,
                ?pause,
                "the database does not serve: nothing is fetched until it does"
            );
        } else {
            tracing::debug!(error, ?pause, "the database does not serve yet");
        }
        self.status.paused(Some(error));
    }

    /// An attempt that began at this moment ended without a failure. `is_handled`: the handler
    /// worked, and it is committed.
    pub(super) fn succeeded(&self, route: usize, began: Instant, is_handled: bool) {
        if self.all.succeeded(began) {
            self.status.paused(None);
        }
        let Some((destination, breaker)) = self.of_route(route) else {
            return;
        };
        if is_handled && breaker.succeeded(began) {
            tracing::info!(%destination, "this destination goes on");
            self.status.paused_destination(destination, None);
        }
    }

    /// The message has ended one way or the other.
    pub(super) fn forget(&self, identity: impl FnOnce() -> u64) {
        if self.has_suspects.load(Ordering::Relaxed) {
            self.suspects.invalidate(&identity());
        }
    }

    // What may be tried

    /// Whether no message can be tried now.
    pub(super) fn block_all(&self) -> bool {
        self.all.due().is_some()
            || self
                .destinations
                .iter()
                .all(|(_, breaker)| breaker.due().is_some())
    }

    /// How long no message of this route can be tried.
    pub(super) fn pause_of(&self, route: usize) -> Option<Duration> {
        Some(self.of_route(route)?.1.pause()?.max(FIRST_PAUSE))
    }

    /// Waits until something can be tried. Cancel safe; called by one worker at a time.
    pub(super) async fn wait(&self, pool: &Pool) {
        while self.block_all() {
            let due = self.all.due().or_else(|| self.earliest(Breaker::due));
            sleep_until(due.unwrap_or_else(Instant::now)).await;
            self.look(pool).await;
        }
    }

    /// When to [look](Self::look) again.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let quiet = self
            .earliest(Breaker::quiet_at)
            .into_iter()
            .chain(self.all.quiet_at())
            .min();
        self.earliest(Breaker::due).into_iter().chain(quiet).min()
    }

    /// Whether it is time to look.
    pub(super) fn is_due(&self) -> bool {
        self.next_look().is_some_and(|due| due <= Instant::now())
    }

    fn earliest(&self, of: impl Fn(&Breaker) -> Option<Instant>) -> Option<Instant> {
        self.destinations
            .iter()
            .filter_map(|(_, breaker)| of(breaker))
            .min()
    }

    /// Probes the database if a breaker is due, and closes each that is. Forgets the failures of
    /// those that have been quiet. Cancel safe.
    pub(super) async fn look(&self, pool: &Pool) {
        let now = Instant::now();
        self.forget_quiet(now);
        let is_due = |breaker: &Breaker| breaker.due().is_some_and(|due| due <= now);
        let due: Vec<_> = self
            .destinations
            .iter()
            .filter(|(_, breaker)| is_due(breaker))
            .collect();
        let is_all_due = is_due(&self.all);
        let Some((destination, _)) = due.first().copied().or(self.destinations.first()) else {
            return;
        };
        if due.is_empty() && !is_all_due {
            return;
        }
        let is_paused = self.block_all();
        match probe(pool, destination, is_paused).await {
            Ok(()) => {
                self.status.started();
                if self.all.close() {
                    tracing::info!("the database serves again");
                }
                self.status.paused(None);
                for (_, breaker) in due {
                    breaker.close();
                }
            }
            Err(error) => {
                for (_, breaker) in due {
                    breaker.probe_failed();
                }
                // While the consumer works, a pool that is busy says nothing about the database.
                if is_paused || !matches!(error, Error::Pool(_)) {
                    let is_new = self.all.probe_failed();
                    self.note_paused(&error, self.all.pause().unwrap_or_default(), is_new);
                } else {
                    tracing::debug!(error = causes(&error), "no connection for a probe");
                }
            }
        }
    }

    fn forget_quiet(&self, now: Instant) {
        let is_quiet = |breaker: &Breaker| breaker.quiet_at().is_some_and(|at| at <= now);
        if is_quiet(&self.all) {
            self.all.forget();
            self.status.paused(None);
        }
        for (destination, breaker) in self
            .destinations
            .iter()
            .filter(|(_, breaker)| is_quiet(breaker))
        {
            breaker.forget();
            self.status.paused_destination(destination, None);
        }
    }
}
