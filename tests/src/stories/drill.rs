//! A story told again and again, with the worker killed at another point each time.

use std::{fmt, net::SocketAddr, path::Path, sync::Arc, time::Instant};

use anyhow::{Context, Result, bail};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    fate::{Fate, Moment, Point},
    line::{Line, Server},
    speech::Tongue,
    work::{LEASE, Role},
    worker::{Ending, Worker},
};
use crate::harness::Database;

/// How many messages are on their way at once: most of the time a worker waits for the end of a
/// dead one's lease.
const AT_ONCE: usize = 12;

/// How often a message is delivered before something must be wrong.
const MOST_DELIVERIES: usize = 20;

/// How often a run is repeated that was too slow.
const MOST_REPEATS: usize = 8;

/// What is needed to tell a story.
pub struct Drill<'d> {
    /// The binary `story-worker`.
    pub program: &'d Path,
    /// What the workers do.
    pub role: Role,
    /// Where they do it.
    pub database: &'d Database,
    /// Whom they call.
    pub outside: SocketAddr,
}

/// What became of one message.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its id.
    pub message: String,
    /// Where the first worker was killed; none: it was left alone.
    pub point: Option<Point>,
    /// What the first worker has said, a name for each turn.
    pub turns: Vec<String>,
    /// The turns of the first worker, up to the kill, are those of an undisturbed worker. A slow
    /// worker also renews its lease, so another turn can be in progress when it is killed.
    pub is_regular: bool,
}

impl Drill<'_> {
    /// Has one message handled undisturbed, and then one for each point of that. Answers when all
    /// are done: the undisturbed one first, then the points in their order.
    ///
    /// # Errors
    /// When a worker fails, or a message is never done.
    pub async fn every_point(&self) -> Result<Vec<Outcome>> {
        let undisturbed = self.undisturbed().await?;
        let script = &undisturbed.turns;
        let points = (0..script.len()).flat_map(|turn| {
            let moments = [Moment::Unsaid, Moment::Torn, Moment::Unheard, Moment::Heard];
            moments.map(|moment| Point { turn, moment })
        });
        let told = stream::iter(points)
            .map(|point| self.tell_at(point, script))
            .buffered(AT_ONCE)
            .try_collect::<Vec<_>>();
        let told = told.await?.concat();
        Ok([vec![undisturbed], told].concat())
    }

    /// A slow worker also renews its lease. That is no step of the story, so it is repeated.
    async fn undisturbed(&self) -> Result<Outcome> {
        for number in 1..=MOST_REPEATS {
            let started = Instant::now();
            let outcome = self.tell(None, &format!("undisturbed-{number}")).await?;
            if started.elapsed() < LEASE / 3 {
                return Ok(outcome);
            }
        }
        bail!(
            "none of {MOST_REPEATS} undisturbed workers has ended within {:?}",
            LEASE / 3
        )
    }

    /// One message for a point. When the turns up to the kill are not those of the script, another
    /// message follows, up to [`MOST_REPEATS`] in all.
    async fn tell_at(&self, point: Point, script: &[String]) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        for number in 1..=MOST_REPEATS {
            let Point { turn, moment } = point;
            let message = format!("{turn:02} {moment} {number}").replace([' ', ','], "-");
            let mut outcome = self.tell(Some(point), &message).await?;
            let is_regular = outcome.turns.starts_with(&script[..=turn]);
            outcome.is_regular = is_regular;
            outcomes.push(outcome);
            if is_regular {
                break;
            }
        }
        Ok(outcomes)
    }

    /// Delivers a message until it is done; the first worker dies there.
    async fn tell(&self, point: Option<Point>, message: &str) -> Result<Outcome> {
        let (mut ending, turns) = self.deliver(message, point).await?;
        for _ in 0..MOST_DELIVERIES {
            match ending {
                Ending::Done => {
                    let message = message.to_owned();
                    return Ok(Outcome {
                        message,
                        point,
                        turns,
                        is_regular: true,
                    });
                }
                Ending::Killed => {}
                Ending::Failed(status) => bail!(
                    "{}, message {message}: a worker failed ({status})",
                    self.role
                ),
            }
            ending = self.deliver(message, None).await?.0;
        }
        bail!(
            "{}, message {message}: not done after {MOST_DELIVERIES} deliveries",
            self.role
        )
    }

    async fn deliver(&self, message: &str, point: Option<Point>) -> Result<(Ending, Vec<String>)> {
        let fate = Arc::new(Fate::new(point));
        let socket = self.database.cluster().socket_dir().join(".s.PGSQL.5432");
        let database = Line::open(
            "database",
            Server::Unix(socket),
            Tongue::Postgres,
            Arc::clone(&fate),
        )
        .await?;
        let outside = Line::open(
            "outside",
            Server::Tcp(self.outside),
            Tongue::Lines,
            Arc::clone(&fate),
        )
        .await?;
        let arguments = [
            self.role.argument().to_owned(),
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
        Ok((ending, fate.turns()))
    }
}

impl Outcome {
    /// What was being said when the worker was killed; none when it was left alone, or did not come
    /// so far.
    #[must_use]
    pub fn said(&self) -> Option<&str> {
        self.turns.get(self.point?.turn).map(String::as_str)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.point, self.said()) {
            (Some(Point { turn, moment }), Some(said)) => {
                write!(f, "{turn:>3}  {said:<48} {moment}")
            }
            (Some(_), None) => f.write_str("     done before it came so far"),
            (None, _) => f.write_str("     undisturbed"),
        }
    }
}
