//! Pauses the whole consumer or one destination after a failure of the environment. If only one
//! message meets such a failure while other messages of its destination succeed, the failure counts
//! as a failure of that message.

use std::{collections::BTreeMap, time::Duration};

use deadpool_postgres::Pool;
use idem_client::Destination;
use tokio::time::{Instant, sleep_until};

use super::{
    breaker::{Breaker, PAUSES},
    failures::Failures,
    probe::probe,
    routes::Routes,
    status::Status,
};
use crate::{Error, Message, error::causes, telemetry::warn_if_new};

/// The circuit breaker of the database, and a circuit breaker for each destination.
pub(super) struct Breakers {
    all: Breaker,
    destinations: BTreeMap<Destination, Breaker>,
    status: Status,
}

impl Breakers {
    /// Creates the breakers. The breaker of the database is open until the first probe succeeds, so
    /// nothing is fetched before that.
    pub(super) fn new(routes: &Routes, status: Status) -> Self {
        let destinations = routes.destinations().cloned();
        Self {
            all: Breaker::open(),
            destinations: destinations.map(|name| (name, Breaker::closed())).collect(),
            status,
        }
    }

    // What the result of an attempt changes

    /// Decides what caused an error of the environment in an attempt to process a message of this
    /// destination. Returns the time after which the message may be redelivered; `None` if the
    /// message itself is the cause.
    ///
    /// The message is the cause if two kinds of attempts have succeeded since it was suspected: an
    /// attempt of any route, which shows that the database is available, and an attempt that
    /// handled a message of the same destination. Only attempts that started after a probe closed
    /// the breakers count.
    pub(super) fn judge(
        &self,
        failures: &Failures,
        message: &Message,
        destination: &Destination,
        error: &Error,
    ) -> Option<Duration> {
        let breaker = self.destinations.get(destination)?;
        let is_cause =
            |since| breaker.has_succeeded_since(since) && self.all.has_succeeded_since(since);
        if failures.suspect(message, is_cause) {
            return None;
        }
        let pause = match error {
            Error::Handler(_) => {
                let (pause, is_new) = breaker.trip();
                let error = causes(error);
                warn_if_new!(
                    is_new,
                    error,
                    %destination,
                    message_id = message.message_id(),
                    ?pause,
                    "the environment of a destination failed: the destination is paused"
                );
                self.status.paused_destination(destination, Some(error));
                pause
            }
            _ => self.trip_all(error),
        };
        // Other messages are tried first, because this message waits twice as long as the pause.
        // Their success shows whether this message is the cause.
        Some(pause.max(PAUSES.first) * 2)
    }

    /// Opens the breaker of the database. Returns the pause.
    pub(super) fn trip_all(&self, error: &Error) -> Duration {
        let (pause, is_new) = self.all.trip();
        self.note_paused(error, pause, is_new);
        pause
    }

    fn note_paused(&self, error: &Error, pause: Duration, is_new: bool) {
        let error = causes(error);
        warn_if_new!(
            is_new,
            error,
            ?pause,
            "the database is not available: nothing is fetched until it is"
        );
        self.status.paused(Some(error));
    }

    /// Records that an attempt that started at `began` ended without a failure. `is_handled` is
    /// true if its handler ran and its transaction committed.
    pub(super) fn succeeded(&self, destination: &Destination, began: Instant, is_handled: bool) {
        if self.all.succeeded(began) {
            self.status.paused(None);
        }
        let breaker = self.destinations.get(destination).filter(|_| is_handled);
        if breaker.is_some_and(|breaker| breaker.succeeded(began)) {
            tracing::info!(%destination, "the destination is resumed");
            self.status.paused_destination(destination, None);
        }
    }

    // Availability

    /// Returns true if no message can be tried now: the breaker of the database is open, or the
    /// breakers of all destinations are open.
    pub(super) fn block_all(&self) -> bool {
        self.all.due().is_some()
            || self
                .destinations
                .values()
                .all(|breaker| breaker.due().is_some())
    }

    /// Returns how long this destination is still paused. `None` if its messages can
    /// be tried.
    pub(super) fn pause_of(&self, destination: &Destination) -> Option<Duration> {
        let breaker = self.destinations.get(destination)?;
        Some(breaker.pause()?.max(PAUSES.first))
    }

    /// Waits until a message can be tried. Cancel safe. Only one worker calls this at a time.
    pub(super) async fn wait(&self, pool: &Pool) {
        while self.block_all() {
            let due = self.all.due().or_else(|| self.earliest(Breaker::due));
            sleep_until(due.unwrap_or_else(Instant::now)).await;
            self.probe_if_due(pool).await;
        }
    }

    /// Returns when to call [`probe_if_due`](Self::probe_if_due) again.
    pub(super) fn next_probe(&self) -> Option<Instant> {
        let quiet = self
            .earliest(Breaker::quiet_at)
            .into_iter()
            .chain(self.all.quiet_at())
            .min();
        self.earliest(Breaker::due).into_iter().chain(quiet).min()
    }

    /// Returns whether it is time to call [`probe_if_due`](Self::probe_if_due).
    pub(super) fn is_due(&self) -> bool {
        self.next_probe().is_some_and(|due| due <= Instant::now())
    }

    fn earliest(&self, of: impl Fn(&Breaker) -> Option<Instant>) -> Option<Instant> {
        self.destinations.values().filter_map(of).min()
    }

    /// Probes the database if the probe of a breaker is due. If the probe succeeds, closes the
    /// breakers that are due. Forgets the failures of breakers that have been closed for long
    /// enough. Cancel safe.
    pub(super) async fn probe_if_due(&self, pool: &Pool) {
        let now = Instant::now();
        self.forget_quiet(now);
        let is_due = |breaker: &Breaker| breaker.due().is_some_and(|due| due <= now);
        let due: Vec<_> = self
            .destinations
            .iter()
            .filter(|(_, breaker)| is_due(breaker))
            .collect();
        let is_all_due = is_due(&self.all);
        let Some((destination, _)) = due.first().copied().or(self.destinations.first_key_value())
        else {
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
                    tracing::info!("the database is available again");
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
                // While the consumer works, all connections of the pool may be busy, so
                // `Error::Pool` does not show that the database has failed.
                if is_paused || !matches!(error, Error::Pool(_)) {
                    let is_new = self.all.probe_failed();
                    self.note_paused(&error, self.all.pause().unwrap_or_default(), is_new);
                } else {
                    tracing::debug!(
                        error = causes(&error),
                        "the pool has no free connection for a probe"
                    );
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
