//! Measures a transaction that is sent as one pipeline, with a single Sync: BEGIN, claim, business
//! update, COMMIT. The same transaction with a round trip for each statement shows how much the
//! pipeline saves.

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Install};

use super::options::Options;
use super::pgbench::Script;
use super::report::{Rounds, Table, Target};
use super::side::{DESTINATION, Side};
use super::wire::Session;
use super::{idem, server, throughput};

const CLIENTS: usize = 16;
/// The database of the pipelines without a claim.
const WITHOUT: &str = "without";
/// The database of the transactions with a round trip for each statement.
const IN_STEPS: &str = "in_steps";

/// How a transaction is sent.
#[derive(Clone, Copy)]
enum Sent {
    /// As one pipeline, without a claim.
    WithoutClaim,
    /// As one pipeline, with the claim of this side.
    WithClaim(Side),
    /// With the claim of idem, and a round trip for each statement.
    InSteps,
}

impl Sent {
    /// Returns all, in an order that alternates from round to round.
    fn in_turn(round: usize) -> [Self; 4] {
        let [one, two] = Side::in_turn(round).map(Self::WithClaim);
        let mut all = [Self::WithoutClaim, one, Self::InSteps, two];
        all.rotate_left(round % 4);
        all
    }

    /// Returns the database in which the transaction runs.
    fn database(self) -> &'static str {
        match self {
            Self::WithoutClaim => WITHOUT,
            Self::WithClaim(side) => side.database(),
            Self::InSteps => IN_STEPS,
        }
    }

    fn claim(self) -> String {
        match self {
            Self::WithoutClaim => String::new(),
            Self::WithClaim(Side::Idem) | Self::InSteps => {
                format!("SELECT idem_try_claim(gen_random_uuid()::text, '{DESTINATION}');\n")
            }
            Self::WithClaim(Side::HandWritten) => format!(
                "INSERT INTO inbox (message_id, destination) \
                 VALUES (gen_random_uuid()::text, '{DESTINATION}') ON CONFLICT DO NOTHING;\n"
            ),
        }
    }

    /// Returns the script of pgbench.
    fn script(self) -> String {
        let (start, end) = match self {
            Self::InSteps => ("", ""),
            _ => ("\\startpipeline\n", "\\endpipeline\n"),
        };
        format!(
            "\\set account random(0, {})\n{start}BEGIN;\n{}{};\nCOMMIT;\n{end}",
            server::ACCOUNTS - 1,
            self.claim(),
            server::BUSINESS.replace("$1", ":account"),
        )
    }
}

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = server::start(install, "bench-pipelined", &[])?;
    for side in Side::in_turn(0) {
        throughput::prepare(&cluster, side, options.retained())?;
    }
    cluster.run("createdb", [WITHOUT], &[])?;
    server::create_accounts(&mut Session::connect(&cluster, WITHOUT)?)?;
    cluster.run("createdb", [IN_STEPS], &[])?;
    let mut session = Session::connect(&cluster, IN_STEPS)?;
    session.run("CREATE EXTENSION idem")?;
    server::create_accounts(&mut session)?;
    idem::create(&mut session)?;
    idem::top_up(&mut session, idem::Fill::mid_life(options.retained()))?;
    let mut table = Table::new(
        "pipelined: BEGIN, claim, business update, COMMIT with one Sync: transactions per second",
        ["with the claim", "without"],
    );
    table.note(server::settings(&mut Session::connect(
        &cluster,
        Side::Idem.database(),
    )?)?);
    table.note(format!(
        "pgbench, prepared statements, {CLIENTS} clients; {} identities retained at the start; \
         every message is new; {} rounds of {:.1} s for each side, interleaved",
        options.retained(),
        options.rounds(),
        options.round().as_secs_f64(),
    ));
    let mut saved = Table::new(
        "    One pipeline against a round trip for each statement, both with the claim of idem",
        ["pipeline", "round trips"],
    );
    saved.note("over a Unix socket: a network adds its latency to each round trip");
    for synchronous_commit in [false, true] {
        let mut with = [Rounds::default(), Rounds::default()];
        let mut steps = Rounds::default();
        for round in 0..options.rounds() {
            for sent in Sent::in_turn(round) {
                let rate = rate(&cluster, sent, synchronous_commit, options)?;
                match sent {
                    Sent::WithoutClaim => with.iter_mut().for_each(|side| side.theirs.push(rate)),
                    Sent::WithClaim(Side::Idem) => {
                        with[0].ours.push(rate);
                        steps.ours.push(rate);
                    }
                    Sent::WithClaim(Side::HandWritten) => with[1].ours.push(rate),
                    Sent::InSteps => steps.theirs.push(rate),
                }
            }
        }
        let commit = if synchronous_commit { "on" } else { "off" };
        let [ours, by_hand] = &with;
        let what = format!("idem, synchronous_commit={commit}");
        table.rounds(&what, ours, Target::AtLeast(0.82));
        saved.rounds(&what, &steps, Target::None);
        let what = format!("hand-written, synchronous_commit={commit}");
        table.rounds(&what, by_hand, Target::None);
    }
    Ok(vec![table, saved])
}

/// Returns the transactions per second of one round.
fn rate(cluster: &Cluster, sent: Sent, synchronous_commit: bool, options: &Options) -> Result<f64> {
    let mut session = Session::connect(cluster, sent.database())?;
    let before: u64 = session.value(server::UPDATES)?;
    let output = Script {
        cluster,
        database: sent.database(),
        text: &sent.script(),
        clients: CLIENTS,
        time: options.round(),
        synchronous_commit,
    }
    .run()?;
    let updates = session.value::<u64>(server::UPDATES)? - before;
    let transactions = output.transactions()?;
    ensure!(
        updates == transactions,
        "{updates} business updates in {transactions} transactions"
    );
    output.rate()
}
