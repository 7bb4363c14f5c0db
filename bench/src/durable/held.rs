//! Measures the durable inbox with and without another transaction that stays open.
//!
//! One server has two databases, which differ only in this transaction. They process messages
//! alternately. The first rounds are not measured. They leave tens of thousands of dead rows that
//! cannot be removed because of the open snapshot.

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Install};

use super::facts::Facts;
use super::ours::Transactions;
use super::{SENT_TOGETHER, WORKERS, hold};
use crate::options::Options;
use crate::report::{Rounds, Table, Target};
use crate::server;
use crate::wire::Session;

const TRANSACTIONS: [(Transactions, &str); 2] = [
    (Transactions::PerJob, "a transaction per job"),
    (Transactions::PerBatch, "a transaction per 100 jobs"),
];

/// The rates of one round, in jobs per second: `processed` covers only the processing and
/// completion of the jobs, and `whole` also covers the sending.
struct Rates {
    processed: f64,
    whole: f64,
}

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = server::start(install, "bench-inbox-snapshot", &[])?;
    let jobs = options.sized(20_000, 1_000);
    // In a full run, these rounds process 40,000 messages.
    let unmeasured = 2;
    let mut table = Table::new(
        "inbox-open-snapshot: the durable inbox with and without a transaction held open in \
         another session: jobs/s",
        ["with", "without"],
    );
    for (transactions, name) in TRANSACTIONS {
        let [processed, whole] =
            compare(&cluster, transactions, options.rounds(), unmeasured, jobs)?;
        let processing = format!("{name}: processed and completed");
        table.rounds(&processing, &processed, Target::AtLeast(0.95));
        table.rounds(
            &format!("{name}: sent, processed and completed"),
            &whole,
            Target::None,
        );
    }
    table.note(format!(
        "{jobs} messages of 200 bytes a round, sent {SENT_TOGETHER} at a time by {WORKERS} \
         producers, then handled by {WORKERS} workers: one INSERT of a fact for each job"
    ));
    table.note(format!(
        "REPEATABLE READ transaction that has read and written, in the same database; {} jobs were \
         processed while it was open before the first measured round",
        jobs * unmeasured as u64
    ));
    table.note(server::settings(&mut Session::connect(
        &cluster,
        &database(TRANSACTIONS[0].0, true),
    )?)?);
    Ok(vec![table])
}

/// Returns both rates of both sides. The order of the sides alternates from round to round.
fn compare(
    cluster: &Cluster,
    transactions: Transactions,
    rounds: usize,
    unmeasured: usize,
    jobs: u64,
) -> Result<[Rounds; 2]> {
    let sides = [database(transactions, true), database(transactions, false)];
    for side in &sides {
        create(cluster, side)?;
    }
    let mut sent = 0;
    let mut run_round = |side: &str| -> Result<Rates> {
        sent += jobs;
        round(cluster, transactions, side, sent - jobs, jobs)
    };
    // Warm up both databases before the transaction begins.
    for side in &sides {
        run_round(side)?;
    }
    let mut holder = hold(cluster, &sides[0])?;
    let [mut processed, mut whole] = [const {
        Rounds {
            ours: Vec::new(),
            theirs: Vec::new(),
        }
    }; 2];
    for number in 0..unmeasured + rounds {
        for place in [number % 2, 1 - number % 2] {
            let rates = run_round(&sides[place])?;
            eprintln!("{}: {:.0} jobs/s", sides[place], rates.processed);
            if number < unmeasured {
                continue;
            }
            for (figures, rate) in [(&mut processed, rates.processed), (&mut whole, rates.whole)] {
                if place == 0 {
                    figures.ours.push(rate);
                } else {
                    figures.theirs.push(rate);
                }
            }
        }
    }
    // This query fails unless the transaction was open all the time.
    holder.run("SELECT count(*) FROM holder")?;
    holder.run("ROLLBACK")?;
    Ok([processed, whole])
}

fn database(transactions: Transactions, is_held: bool) -> String {
    format!(
        "{}-{}",
        transactions.destination(),
        if is_held { "held" } else { "free" }
    )
}

fn create(cluster: &Cluster, database: &str) -> Result<()> {
    cluster.run("createdb", [database], &[])?;
    let mut session = Session::connect(cluster, database)?;
    Facts::create(&mut session)?;
    session.run("CREATE TABLE holder (n int8)")?;
    session.run("CREATE EXTENSION idem")?;
    Ok(())
}

fn round(
    cluster: &Cluster,
    transactions: Transactions,
    database: &str,
    first: u64,
    jobs: u64,
) -> Result<Rates> {
    let sending = transactions.enqueue(cluster, database, first, jobs)?;
    transactions.drain(cluster, database, jobs)?;
    let mut session = Session::connect(cluster, database)?;
    let processing = Facts::take(&mut session, first, jobs)?;
    let left: u64 = session.value(&transactions.left())?;
    ensure!(left == 0, "{left} jobs are left");
    Ok(Rates {
        processed: jobs as f64 / processing,
        whole: jobs as f64 / (sending + processing),
    })
}
