//! Measures whether the price of a claim depends on the number of retained claims.

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
    times: Vec<f64>,
    /// The bytes of a stored claim: on disk, and in the filters.
    disk: f64,
    filters: f64,
}

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    // Filters take two bytes for each retained claim.
    let cluster = server::start(install, "bench-flat", &[("idem.filter_memory", "256MB")])?;
    let mut sizes = options
        .sized(
            [1_000_000, 10_000_000, 50_000_000],
            [20_000, 50_000, 200_000],
        )
        .map(|retained| Size::create(&cluster, retained))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    // Few claims, so that no filter of a current slice becomes too small during the measurement.
    let claims = options.sized(5_000, 500);
    for round in 0..options.rounds() {
        let first = round % sizes.len();
        sizes.rotate_left(first);
        for size in &mut sizes {
            idem::build_filters(&mut size.session)?;
            size.times.push(in_server::time_of_new(
                &mut size.session,
                in_server::Form::Expression,
                claims,
            )?);
        }
        sizes.rotate_right(first);
    }
    let mut table = Table::new(
        "flat: claims in a loop of PL/pgSQL: microseconds per claim",
        ["many retained", "few retained"],
    );
    let [few, more @ ..] = sizes.as_mut_slice() else {
        return Ok(Vec::new());
    };
    table.note(server::settings(&mut few.session)?);
    table.note(format!(
        "{claims} claims in each round, {} rounds, the databases in turn; the claim is an \
         expression of PL/pgSQL, so that no statement is part of a figure",
        options.rounds()
    ));
    let mut space = Table::new(
        "    Disk and memory: bytes per stored claim",
        ["many retained", "few retained"],
    );
    for size in more {
        let what = format!("{} retained against {}", size.retained, few.retained);
        let rounds = Rounds {
            ours: size.times.clone(),
            theirs: few.times.clone(),
        };
        table.rounds(&what, &rounds, Target::AtMost(1.15));
        let on_disk = format!("on disk, {what}");
        space.pair(&on_disk, size.disk, few.disk, Target::None);
        let in_filters = format!("filters, {what}");
        space.pair(&in_filters, size.filters, few.filters, Target::None);
    }
    Ok(vec![table, space])
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
            times: Vec::new(),
        })
    }
}
