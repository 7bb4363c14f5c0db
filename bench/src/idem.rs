//! Fills the ring of the measured claims with as many claims as it has in the middle between two
//! rotations, and rotates it on demand.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::side::{DESTINATION, Order};
use super::wire::Session;

/// The number of sealed slices of a ring in its steady state.
pub const SEALED: usize = 6;

/// The ring of a destination without configuration.
const RING: &str = "standard";
/// The number of segments of a slice that end by time (`idem.segments_by_time`).
const SEGMENTS: u64 = 32;
/// The present segment in the middle between two rotations. It is half full.
const PRESENT: u64 = SEGMENTS / 2;
/// The longest time that a rotation may take. It is longer than any transaction of the benchmark.
const ROTATION_DEADLINE: Duration = Duration::from_secs(30);
/// The longest time that the filters of all slices may take. A server reads some million claims in
/// a second.
const FILTERS_DEADLINE: Duration = Duration::from_secs(300);

/// The state of the ring.
pub struct Ring {
    /// The numbers of the slices: current, next, and the sealed slices, the oldest first.
    slices: Vec<String>,
    rotations: u64,
}

impl Ring {
    /// Reads the state of the ring. Fails while a rotation is in progress.
    pub fn steady(session: &mut Session) -> Result<Self> {
        let phase: String = session.value(&format!(
            "SELECT phase FROM idem.ring WHERE name = '{RING}'"
        ))?;
        ensure!(phase == "steady", "the ring is {phase}");
        Ok(Self {
            slices: session.column(&format!(
                "SELECT unnest(slices)::text FROM idem.ring WHERE name = '{RING}'"
            ))?,
            rotations: session.value(&format!(
                "SELECT rotations FROM idem.ring WHERE name = '{RING}'"
            ))?,
        })
    }

    /// Returns the table of the slice at this position in the order of their age.
    fn slice(&self, position: usize) -> String {
        format!("idem.inbox_{RING}_{}", self.slices[position])
    }
}

/// The number of claims in each sealed slice and in the current slice.
#[derive(Clone, Copy)]
pub struct Fill {
    pub sealed: u64,
    pub current: u64,
}

impl Fill {
    /// Returns the numbers for a ring with `retained` claims in one retention, in the middle
    /// between two rotations: the sealed slices are full, and the current slice is half full.
    pub fn mid_life(retained: u64) -> Self {
        Self {
            sealed: retained / SEALED as u64,
            current: retained / SEALED as u64 / 2,
        }
    }

    /// Returns the numbers for exactly `claims` claims, in the same proportion.
    pub fn exactly(claims: u64) -> Self {
        let halves = 2 * SEALED as u64 + 1;
        Self {
            sealed: claims * 2 / halves,
            current: claims - claims * 2 / halves * SEALED as u64,
        }
    }
}

/// Creates the destination by making a first claim for it.
pub fn create(session: &mut Session) -> Result<()> {
    session.run(&format!(
        "BEGIN; SELECT idem_try_claim(gen_random_uuid(), '{DESTINATION}'); COMMIT"
    ))?;
    Ok(())
}

/// Adds random claims to each slice until the slice has the number in `fill`. The rows are inserted
/// directly, because no function makes claims in the past.
pub fn top_up(session: &mut Session, fill: Fill) -> Result<()> {
    let ring = Ring::steady(session)?;
    let sealed = (2..2 + SEALED).map(|position| (position, fill.sealed));
    for (position, wanted) in sealed.chain([(0, fill.current)]) {
        let slice = ring.slice(position);
        let there: u64 = session.value(&format!("SELECT count(*) FROM {slice}"))?;
        let missing = wanted.saturating_sub(there);
        if missing == 0 {
            continue;
        }
        // The current slice takes claims while it is measured, so its index must have the shape
        // that random inserts give it. The sealed slices are only read, so they get sorted rows,
        // which are inserted faster. The present segment is half full.
        let (order, halves) = match position {
            0 => ("", 2 * PRESENT + 1),
            _ => ("ORDER BY segment, key", 2 * SEGMENTS),
        };
        session.run(&format!(
            "INSERT INTO {slice} (key, claimed_at, destination, segment)
             SELECT key, now(), (SELECT id FROM idem.destination WHERE name = '{DESTINATION}'),
                    segment
               FROM (SELECT gen_random_uuid() AS key, n * {halves} / {missing} / 2 AS segment
                       FROM generate_series(0, {missing} - 1::bigint) n) new {order}"
        ))?;
    }
    // The segment has just opened, so it does not end during a measurement.
    session.run(&format!(
        "UPDATE idem.ring SET segment = {PRESENT}, segment_opened = idem.ran(),
                segment_started = idem.ran(),
                segment_bytes = pg_relation_size(idem.slice_table(name, slices[1]))
          WHERE name = '{RING}'"
    ))?;
    session.run("SELECT idem_finish_restore()")?;
    build_filters(session)
}

/// Vacuums the slices, as autovacuum does some time after the rows were inserted.
pub fn vacuum(session: &mut Session) -> Result<()> {
    let tables: Vec<String> = session.column(&format!(
        "SELECT 'idem.inbox_{RING}_' || n FROM unnest(idem.slice_numbers(1::int2)) n"
    ))?;
    for table in tables {
        session.run(&format!("VACUUM (ANALYZE) {table}"))?;
    }
    build_filters(session)
}

/// Builds good filters, because the inserted rows have invalidated them.
pub fn build_filters(session: &mut Session) -> Result<()> {
    let started = Instant::now();
    let missing =
        format!("SELECT count(*) FROM idem.filters WHERE ring = '{RING}' AND reason IS NOT NULL");
    while session.value::<u64>(&missing)? > 0 {
        session.run("CALL idem_maintain()")?;
        ensure!(
            started.elapsed() < FILTERS_DEADLINE,
            "the filters were not built within {FILTERS_DEADLINE:?}"
        );
    }
    Ok(())
}

/// Returns ids that are retained now and after the next rotation. They are not in the oldest slice.
/// The order of time is that of the segments.
pub fn sample(session: &mut Session, ids: u64, order: Order) -> Result<Vec<String>> {
    let ring = Ring::steady(session)?;
    let order = match order {
        Order::Random => "random()",
        Order::OfTime => "slice, segment, random()",
    };
    session.column(&format!(
        "SELECT key::text
           FROM (SELECT * FROM (SELECT 0 AS slice, segment, key FROM {} TABLESAMPLE SYSTEM (10)
                                 UNION ALL
                                SELECT 1, segment, key FROM {} TABLESAMPLE SYSTEM (10)) known
                  ORDER BY random() LIMIT {ids}) known
          ORDER BY {order}",
        ring.slice(1 + SEALED),
        ring.slice(0)
    ))
}

/// Makes a rotation of the ring due, and rotates the ring while claims are made: open, fence,
/// rotate, fence, truncate.
pub fn rotate(session: &mut Session) -> Result<()> {
    let before = Ring::steady(session)?;
    session.run(&format!(
        "UPDATE idem.ring SET rotated_at = rotated_at - retention WHERE name = '{RING}'"
    ))?;
    let started = Instant::now();
    loop {
        session.run("CALL idem_maintain()")?;
        // The state is read again, because the background worker may have done a step of this
        // rotation.
        if let Ok(ring) = Ring::steady(session)
            && ring.rotations > before.rotations
        {
            ensure!(
                ring.rotations == before.rotations + 1,
                "the ring rotated more than once"
            );
            return Ok(());
        }
        if started.elapsed() > ROTATION_DEADLINE {
            bail!("the ring did not rotate within {ROTATION_DEADLINE:?}");
        }
    }
}

/// Returns the bytes of all slices of the ring, including indexes and TOAST.
pub fn bytes(session: &mut Session) -> Result<u64> {
    session.value(&format!(
        "SELECT sum(pg_total_relation_size('idem.inbox_{RING}_' || n))
           FROM unnest(idem.slice_numbers(1::int2)) n"
    ))
}

/// Returns the bytes of the filters of the ring.
pub fn filter_bytes(session: &mut Session) -> Result<u64> {
    session.value(&format!(
        "SELECT sum(bytes) FROM idem.filters WHERE ring = '{RING}'"
    ))
}

/// Returns the number of claims in the ring.
pub fn stored(session: &mut Session) -> Result<u64> {
    let mut stored = 0;
    for slice in Ring::steady(session)?.slices {
        let count = format!("SELECT count(*) FROM idem.inbox_{RING}_{slice}");
        stored += session.value::<u64>(&count)?;
    }
    Ok(stored)
}
