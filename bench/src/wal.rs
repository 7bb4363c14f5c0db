//! Measures the WAL of claims after a checkpoint, with different numbers of retained claims.
//!
//! The first change of a page after a checkpoint writes the whole page to the WAL. So the figure
//! shows how many pages the claims change.

use anyhow::Result;
use idem_cluster::{Cluster, Install};

use super::in_server::{Form, create_loop, time_of_new};
use super::options::Options;
use super::report::{Curve, Figures, Table, Target};
use super::side::Side;
use super::wire::Session;
use super::{idem, inbox, server};

pub fn run(install: &Install, options: &Options) -> Result<Figures> {
    let settings = [
        // Filters take two bytes for each retained claim.
        ("idem.filter_memory", "256MB"),
        // The benchmark decides when there is a checkpoint.
        ("checkpoint_timeout", "1h"),
    ];
    let cluster = server::start(install, "bench-wal", &settings)?;
    let claims = options.sized(50_000, 1_000);
    let sizes: [u64; 3] = options.sized(
        [1_000_000, 10_000_000, 50_000_000],
        [20_000, 50_000, 200_000],
    );
    let mut table = Table::new(
        "wal: WAL of claims after a checkpoint: bytes per claim",
        ["idem", "hand-written"],
    );
    table.note(format!(
        "the first {claims} claims after a checkpoint, in one transaction; wal_compression=off; \
         ids are random uuids"
    ));
    table.note(
        "idem: the middle of a period, so the present segment has 1/384 of the retained claims \
         before; hand-written: text key, index on the time, indexes created after the rows",
    );
    let mut curve = Curve {
        name: "WAL per claim after a checkpoint, bytes".to_owned(),
        axis: "retained claims, millions".to_owned(),
        at: Vec::new(),
        ours: Vec::new(),
        theirs: Vec::new(),
    };
    let targets = [Target::None, Target::AtMost(0.06), Target::AtMost(0.07)];
    for (retained, target) in sizes.into_iter().zip(targets) {
        let bytes = |side| Database::create(&cluster, side, retained)?.bytes_of(claims);
        let (ours, theirs) = (bytes(Side::Idem)?, bytes(Side::HandWritten)?);
        let what = format!("{retained} retained claims");
        table.pair(&what, ours, theirs, target);
        curve.at.push(retained as f64 / 1e6);
        curve.ours.push(ours);
        curve.theirs.push(theirs);
    }
    Ok(Figures {
        tables: vec![table],
        curves: vec![curve],
    })
}

/// The database of one side with its retained claims. It is dropped after the measurement, because
/// the largest one needs much disk.
struct Database<'c> {
    cluster: &'c Cluster,
    name: String,
    session: Session,
    side: Side,
}

impl<'c> Database<'c> {
    fn create(cluster: &'c Cluster, side: Side, retained: u64) -> Result<Self> {
        let name = format!("{}_{retained}", side.database());
        cluster.run("createdb", [name.as_str()], &[])?;
        let mut session = Session::connect(cluster, &name)?;
        session.run("SET synchronous_commit = off")?;
        match side {
            Side::Idem => {
                session.run("CREATE EXTENSION idem")?;
                idem::create(&mut session)?;
                idem::top_up(&mut session, idem::Fill::mid_life(retained))?;
                idem::vacuum(&mut session)?;
            }
            Side::HandWritten => {
                session.run(inbox::TABLE)?;
                inbox::fill(&mut session, retained)?;
                for statement in inbox::INDEXES {
                    session.run(statement)?;
                }
            }
        }
        create_loop(&mut session, Form::Statement(side))?;
        Ok(Self {
            cluster,
            name,
            session,
            side,
        })
    }

    /// Returns the WAL of one claim, and drops the database.
    fn bytes_of(mut self, claims: u64) -> Result<f64> {
        self.session.run("CHECKPOINT")?;
        let before = server::wal_position(&mut self.session)?;
        time_of_new(&mut self.session, Form::Statement(self.side), claims)?;
        let bytes = server::wal_position(&mut self.session)? - before;
        drop(self.session);
        self.cluster
            .run("dropdb", ["--force", self.name.as_str()], &[])?;
        Ok(bytes as f64 / claims as f64)
    }
}
