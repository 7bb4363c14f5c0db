//! Runs a story repeatedly, and kills the worker at a different point each time.

use std::{fmt, net::SocketAddr, path::Path, sync::Arc, time::Instant};

use anyhow::{Context, Result, bail};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    fate::{Fate, Moment, Point},
    line,
    parser::Protocol,
    work::{LEASE, Role},
    worker::{Ending, Worker},
};
use idem_testkit::{Database, proxy::Target};

/// The number of messages in progress at the same time. It can be high, because most of the time a
/// message waits until the lease of a killed worker expires.
const AT_ONCE: usize = 12;

/// The largest number of redeliveries of a message before the drill fails.
const MOST_DELIVERIES: usize = 20;

/// The largest number of runs for one point. A run is repeated when it was too slow.
const MOST_REPEATS: usize = 8;

/// The settings of a drill.
pub struct Drill<'d> {
    /// The path of the binary `story-worker`.
    pub program: &'d Path,
    /// The role of the workers.
    pub role: Role,
    /// The database of the workers.
    pub database: &'d Database,
    /// The address of the external service that the workers use.
    pub outside: SocketAddr,
}

/// The result of one message.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The message id.
    pub message: String,
    /// The point at which the first worker was killed. `None` if it was not killed.
    pub point: Option<Point>,
    /// The names of the requests of the first worker, in order.
    pub requests: Vec<String>,
    /// Whether the requests of the first worker up to the kill are the same as in a run without a
    /// kill. A slow worker also renews its lease, so the kill can happen at a different request.
    pub is_regular: bool,
}

impl Drill<'_> {
    /// Processes one message without a kill, and then one message for each point of that run.
    /// Returns the results of all messages: the message without a kill first, then the other
    /// messages in the order of their points.
    ///
    /// # Errors
    /// When a worker fails, or when a message is not done after 20 redeliveries.
    pub async fn every_point(&self) -> Result<Vec<Outcome>> {
        let undisturbed = self.undisturbed().await?;
        let script = &undisturbed.requests;
        let points = (0..script.len()).flat_map(|request| {
            let moments = [Moment::Unsaid, Moment::Torn, Moment::Unheard, Moment::Heard];
            moments.map(|moment| Point { request, moment })
        });
        let killed = stream::iter(points)
            .map(|point| self.process_at(point, script))
            .buffered(AT_ONCE)
            .try_collect::<Vec<_>>();
        let killed = killed.await?.concat();
        Ok([vec![undisturbed], killed].concat())
    }

    /// Processes a message without a kill. A run is repeated with another message if it was so slow
    /// that the worker may have renewed its lease, because a renewal is not a request of the story.
    async fn undisturbed(&self) -> Result<Outcome> {
        for number in 1..=MOST_REPEATS {
            let started = Instant::now();
            let outcome = self.process(None, &format!("undisturbed-{number}")).await?;
            if started.elapsed() < LEASE / 3 {
                return Ok(outcome);
            }
        }
        bail!(
            "none of {MOST_REPEATS} workers that were not killed ended within {:?}",
            LEASE / 3
        )
    }

    /// Processes one message for a point. If the requests up to the kill differ from those of the
    /// script, the run is repeated with another message, up to [`MOST_REPEATS`] runs in total.
    async fn process_at(&self, point: Point, script: &[String]) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        for number in 1..=MOST_REPEATS {
            let Point { request, moment } = point;
            let message = format!("{request:02} {moment} {number}").replace([' ', ','], "-");
            let mut outcome = self.process(Some(point), &message).await?;
            let is_regular = outcome.requests.starts_with(&script[..=request]);
            outcome.is_regular = is_regular;
            outcomes.push(outcome);
            if is_regular {
                break;
            }
        }
        Ok(outcomes)
    }

    /// Delivers a message until it is done. The first worker is killed at `point`.
    async fn process(&self, point: Option<Point>, message: &str) -> Result<Outcome> {
        let (mut ending, requests) = self.deliver(message, point).await?;
        for redeliveries in 0..=MOST_DELIVERIES {
            if redeliveries > 0 {
                ending = self.deliver(message, None).await?.0;
            }
            match ending {
                Ending::Done => {
                    let message = message.to_owned();
                    return Ok(Outcome {
                        message,
                        point,
                        requests,
                        is_regular: true,
                    });
                }
                Ending::Killed => {}
                Ending::Failed(status) => bail!(
                    "role {}, message {message}: a worker failed ({status})",
                    self.role
                ),
            }
        }
        bail!(
            "role {}, message {message}: not done after {MOST_DELIVERIES} redeliveries",
            self.role
        )
    }

    /// Starts a worker for a message and waits for its end. Returns how it ended, and the names of
    /// its requests.
    async fn deliver(&self, message: &str, point: Option<Point>) -> Result<(Ending, Vec<String>)> {
        let fate = Arc::new(Fate::new(point));
        let open = |name, target, protocol| line::open(name, target, protocol, Arc::clone(&fate));
        let database = open("database", self.database.socket(), Protocol::Postgres).await?;
        let outside = open("outside", Target::Tcp(self.outside), Protocol::Lines).await?;
        let arguments = [
            self.role.to_string(),
            format!(
                "--database=host={} port={} user=postgres dbname={}",
                database.address().ip(),
                database.address().port(),
                self.database.name()
            ),
            format!("--outside={}", outside.address()),
            format!("--message={message}"),
        ];
        let worker = Worker::start(self.program, arguments)?;
        let ending = worker
            .end(&fate)
            .await
            .with_context(|| format!("message {message}"))?;
        Ok((ending, fate.requests()))
    }
}

impl Outcome {
    /// Returns the name of the request at which the worker was killed. Returns `None` if it was not
    /// killed, or if it finished before that request.
    #[must_use]
    pub fn said(&self) -> Option<&str> {
        self.requests.get(self.point?.request).map(String::as_str)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.point, self.said()) {
            (Some(Point { request, moment }), Some(said)) => {
                write!(f, "{request:>3}  {said:<48} {moment}")
            }
            (Some(_), None) => f.write_str("     done before the point of the kill"),
            (None, _) => f.write_str("     not killed"),
        }
    }
}
