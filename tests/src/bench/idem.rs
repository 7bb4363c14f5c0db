//! The ring that the claims are measured on: filled as it is in the middle of its life, and turned
//! on demand.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::side::DESTINATION;
use super::wire::Session;

/// The ring of a destination that nobody has configured.
const RING: &str = "standard";
/// Longer than any transaction of the benchmark.
const TURN_DEADLINE: Duration = Duration::from_secs(30);

/// Where the ring is.
pub struct Ring {
    current: usize,
    turns: u64,
}

impl Ring {
    /// Reads the state of a ring that is between two rotations.
    pub fn steady(session: &mut Session) -> Result<Self> {
        let phase: String = session.value(&format!(
            "SELECT CASE WHEN opening THEN 'opening' WHEN emptying THEN 'emptying' ELSE 'steady' END
               FROM idem.ring WHERE name = '{RING}'"
        ))?;
        ensure!(phase == "steady", "the ring is {phase}");
        Ok(Self {
            current: session.value(&format!(
                "SELECT current FROM idem.ring WHERE name = '{RING}'"
            ))?,
            turns: session.value(&format!(
                "SELECT turns FROM idem.ring WHERE name = '{RING}'"
            ))?,
        })
    }

    /// How often it has turned since the extension was created.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// The slice that is so far behind current.
    fn slice(&self, distance: usize) -> String {
        format!("idem.inbox_{RING}_{}", (self.current + distance) % 4)
    }
}

/// How many claims stand in each of the older sealed, the younger sealed and the current slice.
#[derive(Clone, Copy)]
pub struct Fill {
    pub sealed: u64,
    pub current: u64,
}

impl Fill {
    /// In the middle of a ring's life with so many claims in one retention: both sealed slices are
    /// full, current half.
    pub fn mid_life(retained: u64) -> Self {
        Self {
            sealed: retained / 2,
            current: retained / 4,
        }
    }

    /// Exactly so many claims, in the same proportion.
    pub fn exactly(claims: u64) -> Self {
        Self {
            sealed: claims * 2 / 5,
            current: claims / 5,
        }
    }
}

/// Lets the first claim make the destination.
pub fn create(session: &mut Session) -> Result<()> {
    session.run(&format!(
        "BEGIN; SELECT idem_try_claim(gen_random_uuid(), '{DESTINATION}'); COMMIT"
    ))?;
    Ok(())
}

/// Adds random claims to each slice until it holds what it should. Directly, because claims cannot
/// be made in the past.
pub fn top_up(session: &mut Session, fill: Fill) -> Result<()> {
    let ring = Ring::steady(session)?;
    for (distance, wanted) in [(2, fill.sealed), (3, fill.sealed), (0, fill.current)] {
        let slice = ring.slice(distance);
        let there: u64 = session.value(&format!("SELECT count(*) FROM {slice}"))?;
        let missing = wanted.saturating_sub(there);
        if missing == 0 {
            continue;
        }
        // Current is written while it is measured, so its index has to look as after random
        // inserts. The sealed slices are only read: sorted is faster to fill.
        let order = if distance == 0 { "" } else { "ORDER BY key" };
        session.run(&format!(
            "INSERT INTO {slice} (key, claimed_at, destination)
             SELECT key, now(), (SELECT id FROM idem.destination WHERE name = '{DESTINATION}')
               FROM (SELECT gen_random_uuid() AS key FROM generate_series(1, {missing})) new {order}"
        ))?;
    }
    Ok(())
}

/// Ids that are remembered and still will be after the next turn: not of the oldest slice.
pub fn sample(session: &mut Session, ids: u64) -> Result<Vec<String>> {
    let ring = Ring::steady(session)?;
    session.column(&format!(
        "SELECT key::text FROM (SELECT key FROM {} TABLESAMPLE SYSTEM (10) UNION ALL SELECT key FROM {} TABLESAMPLE SYSTEM (10)) known
          ORDER BY random() LIMIT {ids}",
        ring.slice(3),
        ring.slice(0)
    ))
}

/// Makes the ring due and turns it, while claims are made: open, fence, turn, fence, truncate.
pub fn turn(session: &mut Session) -> Result<()> {
    let before = Ring::steady(session)?;
    session.run(&format!(
        "UPDATE idem.ring SET turned_at = turned_at - retention WHERE name = '{RING}'"
    ))?;
    let started = Instant::now();
    loop {
        session.run("CALL idem_maintain()")?;
        // The worker may have taken a step of it.
        if let Ok(ring) = Ring::steady(session)
            && ring.turns > before.turns
        {
            ensure!(
                ring.turns == before.turns + 1,
                "the ring turned more than once"
            );
            return Ok(());
        }
        if started.elapsed() > TURN_DEADLINE {
            bail!("the ring has not turned within {TURN_DEADLINE:?}");
        }
    }
}

/// Heap, indexes and what belongs to them, of all slices of the ring.
pub fn bytes(session: &mut Session) -> Result<u64> {
    session.value(&format!(
        "SELECT sum(pg_total_relation_size('idem.inbox_{RING}_' || n)) FROM generate_series(0, 3) n"
    ))
}

/// How many claims stand in the ring.
pub fn stored(session: &mut Session) -> Result<u64> {
    session.value(&format!(
        "SELECT (SELECT count(*) FROM idem.inbox_{RING}_0) + (SELECT count(*) FROM idem.inbox_{RING}_1)
              + (SELECT count(*) FROM idem.inbox_{RING}_2) + (SELECT count(*) FROM idem.inbox_{RING}_3)"
    ))
}
