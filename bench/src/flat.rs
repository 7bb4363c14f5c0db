//! Measures whether the price of a claim depends on the number of retained claims.
//!
//! The first change of a page after a checkpoint writes the whole page to the WAL. With more
//! retained claims the index of the current slice has more pages, so more claims write such a page
//! image. The claims are therefore measured twice: right after a checkpoint, and after almost all
//! pages of this index were changed.

use anyhow::Result;
use idem_cluster::{Cluster, Install};

use super::options::Options;
use super::report::{Rounds, Table, Target};
use super::wire::Session;
use super::{idem, in_server, server};

/// A database with its own number of retained claims.
struct Size {
    session: Session,
    retained: u64,
    /// Microseconds per claim, one value for each round.
    after_checkpoint: Vec<f64>,
    between_checkpoints: Vec<f64>,
    /// The bytes of a stored claim: on disk, and in the filters.
    disk: f64,
    filters: f64,
}

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let settings = [
        // Filters take two bytes for each retained claim.
        ("idem.filter_memory", "256MB"),
        // The benchmark decides when there is a checkpoint.
        ("checkpoint_timeout", "1h"),
    ];
    let cluster = server::start(install, "bench-flat", &settings)?;
    let mut sizes = options
        .sized(
            [1_000_000, 10_000_000, 50_000_000],
            [20_000, 50_000, 200_000],
        )
        .map(|retained| Size::create(&cluster, retained))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    measure(&mut sizes, options, When::AfterCheckpoint)?;
    for size in &mut sizes {
        size.change_all_pages()?;
    }
    measure(&mut sizes, options, When::BetweenCheckpoints)?;
    let mut table = Table::new(
        "flat: claims in a loop of PL/pgSQL: microseconds per claim",
        ["many retained", "few retained"],
    );
    let [few, more @ ..] = sizes.as_mut_slice() else {
        return Ok(Vec::new());
    };
    table.note(server::settings(&mut few.session)?);
    table.note(format!(
        "{} claims in each round, {} rounds, the databases in turn; the claim is an expression \
         of PL/pgSQL, so that no statement is part of a figure",
        claims(options),
        options.rounds()
    ));
    table.note(
        "after a checkpoint: each round begins with one; between checkpoints: after claims that \
         have changed almost all pages of the index, and are not measured",
    );
    let mut space = Table::new(
        "    Disk and memory: bytes per stored claim",
        ["many retained", "few retained"],
    );
    for size in more {
        let what = format!("{} retained against {}", size.retained, few.retained);
        let rounds = |times: fn(&Size) -> &Vec<f64>| Rounds {
            ours: times(size).clone(),
            theirs: times(few).clone(),
        };
        let between = format!("between checkpoints, {what}");
        let times = rounds(|size| &size.between_checkpoints);
        table.rounds(&between, &times, Target::AtMost(1.1));
        let after = format!("after a checkpoint, {what}");
        let times = rounds(|size| &size.after_checkpoint);
        table.rounds(&after, &times, Target::AtMost(1.25));
        let on_disk = format!("on disk, {what}");
        space.pair(&on_disk, size.disk, few.disk, Target::None);
        let in_filters = format!("filters, {what}");
        space.pair(&in_filters, size.filters, few.filters, Target::None);
    }
    Ok(vec![table, space])
}

/// When claims are measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    AfterCheckpoint,
    BetweenCheckpoints,
}

/// Measures the databases in turn.
fn measure(sizes: &mut [Size], options: &Options, when: When) -> Result<()> {
    for round in 0..options.rounds() {
        let first = round % sizes.len();
        sizes.rotate_left(first);
        for size in sizes.iter_mut() {
            idem::build_filters(&mut size.session)?;
            if when == When::AfterCheckpoint {
                size.session.run("CHECKPOINT")?;
            }
            let time = size.time_of_new(claims(options))?;
            match when {
                When::AfterCheckpoint => size.after_checkpoint.push(time),
                When::BetweenCheckpoints => size.between_checkpoints.push(time),
            }
        }
        sizes.rotate_right(first);
    }
    Ok(())
}

/// Returns the number of claims of a round. With the default number of rounds they are few enough
/// for the filter of each current slice.
fn claims(options: &Options) -> u64 {
    options.sized(5_000, 500)
}

impl Size {
    fn create(cluster: &Cluster, retained: u64) -> Result<Self> {
        let database = format!("retained_{retained}");
        cluster.run("createdb", [database.as_str()], &[])?;
        let mut session = Session::connect(cluster, &database)?;
        session.run("CREATE EXTENSION idem")?;
        session.run("SET synchronous_commit = off")?;
        idem::create(&mut session)?;
        idem::top_up(&mut session, idem::Fill::mid_life(retained))?;
        idem::vacuum(&mut session)?;
        in_server::create_loop(&mut session, in_server::Form::Expression)?;
        session.run("CHECKPOINT")?;
        let stored = idem::stored(&mut session)? as f64;
        Ok(Self {
            disk: idem::bytes(&mut session)? as f64 / stored,
            filters: idem::filter_bytes(&mut session)? as f64 / stored,
            session,
            retained,
            after_checkpoint: Vec::new(),
            between_checkpoints: Vec::new(),
        })
    }

    fn time_of_new(&mut self, claims: u64) -> Result<f64> {
        in_server::time_of_new(&mut self.session, in_server::Form::Expression, claims)
    }

    /// Claims four times as many messages as the index of the current slice has leaf pages. A page
    /// has about 180 claims. The current slice is half full, and a full slice has a sixth of all.
    fn change_all_pages(&mut self) -> Result<()> {
        self.time_of_new(self.retained / (180 * 6 * 2) * 4)
            .map(drop)
    }
}
