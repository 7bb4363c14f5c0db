//! Measures a transaction that is sent as one pipeline, with a single Sync: BEGIN, claim, business
//! update, COMMIT.

use anyhow::{Result, ensure};
use idem_cluster::Install;

use super::options::Options;
use super::pgbench::Script;
use super::report::{Rounds, Table, Target};
use super::side::{DESTINATION, Side};
use super::wire::Session;
use super::{server, throughput};

const CLIENTS: usize = 16;
/// The database of the pipelines without a claim.
const WITHOUT: &str = "without";

/// The claim of a pipeline.
#[derive(Clone, Copy)]
enum Claim {
    None,
    By(Side),
}

impl Claim {
    /// Returns all, in an order that alternates from round to round.
    fn in_turn(round: usize) -> [Self; 3] {
        let [one, two] = Side::in_turn(round).map(Self::By);
        match round % 3 {
            0 => [Self::None, one, two],
            1 => [one, Self::None, two],
            _ => [one, two, Self::None],
        }
    }

    /// Returns the database in which the pipeline runs.
    fn database(self) -> &'static str {
        match self {
            Self::None => WITHOUT,
            Self::By(side) => side.database(),
        }
    }

    fn statement(self) -> String {
        match self {
            Self::None => String::new(),
            Self::By(Side::Idem) => {
                format!("SELECT idem_try_claim(gen_random_uuid()::text, '{DESTINATION}');\n")
            }
            Self::By(Side::HandWritten) => format!(
                "INSERT INTO inbox (message_id, destination) \
                 VALUES (gen_random_uuid()::text, '{DESTINATION}') ON CONFLICT DO NOTHING;\n"
            ),
        }
    }
}

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = server::start(install, "bench-pipelined", &[])?;
    for side in Side::in_turn(0) {
        throughput::prepare(&cluster, side, options.retained())?;
    }
    cluster.run("createdb", [WITHOUT], &[])?;
    server::create_accounts(&mut Session::connect(&cluster, WITHOUT)?)?;
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
    for synchronous_commit in [false, true] {
        let mut rounds = [Rounds::default(), Rounds::default()];
        for round in 0..options.rounds() {
            let mut without = 0.0;
            for claim in Claim::in_turn(round) {
                let text = format!(
                    "\\set account random(0, {})\n\\startpipeline\nBEGIN;\n{}{};\nCOMMIT;\n\
                     \\endpipeline\n",
                    server::ACCOUNTS - 1,
                    claim.statement(),
                    server::BUSINESS.replace("$1", ":account"),
                );
                let mut session = Session::connect(&cluster, claim.database())?;
                let before: u64 = session.value(server::UPDATES)?;
                let output = Script {
                    cluster: &cluster,
                    database: claim.database(),
                    text: &text,
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
                let rate = output.rate()?;
                match claim {
                    Claim::None => without = rate,
                    Claim::By(Side::Idem) => rounds[0].ours.push(rate),
                    Claim::By(Side::HandWritten) => rounds[1].ours.push(rate),
                }
            }
            for side in &mut rounds {
                side.theirs.push(without);
            }
        }
        let commit = if synchronous_commit { "on" } else { "off" };
        let [ours, by_hand] = &rounds;
        let what = format!("idem, synchronous_commit={commit}");
        table.rounds(&what, ours, Target::AtLeast(0.82));
        let what = format!("hand-written, synchronous_commit={commit}");
        table.rounds(&what, by_hand, Target::None);
    }
    Ok(vec![table])
}
