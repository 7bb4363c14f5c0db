//! Executes the SQL in the documentation without changes.
//!
//! Each file has its own database with the extension, and its ```` ```sql ```` blocks are executed
//! in order. A block that psql cannot execute is marked ```` ```sql,ignore ````.

mod pipeline;
mod readme;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use futures_util::future::BoxFuture;
use idem_cluster::{Cluster, Install, workspace_root};
use idem_runtime::{Delivery, Idem, Message, Receipt, Settlement, transport::TransportError};
use idem_testkit::{Database, Session};

/// The files that must have SQL blocks.
const FILES_WITH_SQL: [&str; 7] = [
    "README.md",
    "docs/capacity.md",
    "docs/consumers.md",
    "docs/durable.md",
    "docs/pipelines.md",
    "docs/relays.md",
    "docs/operations.md",
];

/// A block of SQL code in a Markdown file: the number of its first line, and its text.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    line: usize,
    sql: String,
}

/// Every SQL block in the documentation runs. The test has its own server, because the
/// documentation creates roles and changes settings.
#[tokio::test]
async fn every_sql_block_in_the_documentation_runs() -> Result<()> {
    let cluster = Cluster::builder(&Install::from_env()?)
        .name("docs")
        .setting("shared_buffers", "32MB")
        .start()?;
    let cluster = Arc::new(cluster);
    for file in files()? {
        let name = file.strip_prefix(workspace_root())?.display().to_string();
        let blocks = sql_blocks(&fs::read_to_string(&file)?);
        ensure!(
            !blocks.is_empty() || !FILES_WITH_SQL.contains(&name.as_str()),
            "{name} has no ```sql block"
        );
        run(&cluster, &name, &blocks).await?;
    }
    Ok(())
}

async fn run(cluster: &Arc<Cluster>, file: &str, blocks: &[Block]) -> Result<()> {
    let db = Database::with_idem_in(Arc::clone(cluster), "docs").await?;
    for Block { line, sql } in blocks {
        // psql executes the block statement by statement, as a reader would.
        cluster
            .psql(db.name(), sql)
            .with_context(|| format!("{file}:{line}:\n{sql}"))?;
    }
    // Remove the settings and roles of this file, so that the next file does not see them.
    let admin = Session::connect(cluster, "postgres", "postgres").await?;
    admin.run("ALTER SYSTEM RESET ALL").await?;
    drop(db);
    cluster.psql(
        "postgres",
        "SELECT format('DROP ROLE %I', rolname) FROM pg_roles WHERE oid >= 16384 \\gexec",
    )?;
    Ok(())
}

/// Returns README.md, ARCHITECTURE.md, the READMEs of the published Rust crates, and all Markdown
/// files in docs.
fn files() -> Result<Vec<PathBuf>> {
    let root = workspace_root();
    let mut files = vec![
        root.join("README.md"),
        root.join("ARCHITECTURE.md"),
        root.join("client/README.md"),
        root.join("runtime/README.md"),
        root.join("integrations/http/README.md"),
        root.join("integrations/kafka/README.md"),
        root.join("integrations/nats/README.md"),
        root.join("integrations/postgres/README.md"),
        root.join("integrations/rabbitmq/README.md"),
        root.join("integrations/sqlx/README.md"),
        root.join("relay/README.md"),
    ];
    for entry in fs::read_dir(root.join("docs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    for expected in FILES_WITH_SQL {
        ensure!(
            files
                .iter()
                .any(|file| file == &root.join(Path::new(expected))),
            "{expected} does not exist"
        );
    }
    files.sort();
    Ok(files)
}

fn sql_blocks(markdown: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(bool, Block)> = None;
    for (number, line) in markdown.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                let block = Block {
                    line: number + 2,
                    sql: String::new(),
                };
                open = Some((language.trim() == "sql", block));
            }
            (Some(_), Some(_)) => {
                if let Some((true, block)) = open.take() {
                    blocks.push(block);
                }
            }
            (None, Some((_, block))) => {
                block.sql.push_str(line);
                block.sql.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// The Rust example of the README has the same lines as a function of this crate, so it compiles.
/// The function processes a message once and acknowledges both deliveries.
#[tokio::test]
async fn readme_rust_example_compiles_and_runs() -> Result<()> {
    let readme = fs::read_to_string(workspace_root().join("README.md"))?;
    let code = fs::read_to_string(workspace_root().join("tests/docs/readme.rs"))?;
    let (_, shown) = readme
        .split_once("```rust\n")
        .context("the README has no ```rust block")?;
    let (shown, _) = shown
        .split_once("```")
        .context("the ```rust block of the README has no end")?;
    let lines = |text: &str| {
        text.lines()
            .map(|line| line.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let code = lines(&code);
    let shown = lines(shown);
    ensure!(
        !shown.is_empty() && code.windows(shown.len()).any(|window| window == shown),
        "the ```rust block of the README differs from tests/docs/readme.rs"
    );

    let db = Database::with_idem("readme").await?;
    let admin = db.connect().await?;
    admin
        .run("CREATE TABLE account (id bigint, paid bigint); INSERT INTO account VALUES (7, 0)")
        .await?;
    let pool = deadpool_postgres::Config {
        url: Some(db.cluster().connection_string(db.name())),
        ..Default::default()
    }
    .create_pool(
        Some(deadpool_postgres::Runtime::Tokio1),
        tokio_postgres::NoTls,
    )?;
    let idem = Idem::default();
    let settled = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..2 {
        let message = Message::new("billing.charge", r#"{"account": 7, "amount": 100}"#)
            .with_message_id("payment-4711");
        let delivery = Delivery::new(message, RecordingReceipt(Arc::clone(&settled)));
        readme::charge(&idem, &pool, delivery)
            .await
            .map_err(|error| anyhow::anyhow!(error))?;
    }
    let settled = settled
        .lock()
        .map_err(|_| anyhow::anyhow!("poisoned"))?
        .clone();
    assert_eq!(settled, [Settlement::Acknowledge, Settlement::Acknowledge]);
    assert_eq!(
        admin
            .text(
                "SELECT (SELECT paid FROM account),
                        (SELECT count(*) FROM idem_effects('payment-4711', 'billing.charge'))"
            )
            .await?,
        "100|1"
    );
    Ok(())
}

/// A receipt that records its settlement.
struct RecordingReceipt(Arc<Mutex<Vec<Settlement>>>);

impl Receipt for RecordingReceipt {
    fn settle(
        self: Box<Self>,
        settlement: Settlement,
    ) -> BoxFuture<'static, Result<(), TransportError>> {
        Box::pin(async move {
            self.0.lock().map_err(|_| "poisoned")?.push(settlement);
            Ok(())
        })
    }
}

/// Only blocks that are marked as SQL are extracted, with their line numbers.
#[test]
fn only_sql_blocks_are_extracted() {
    let markdown = "text\n```sql\nSELECT 1;\nSELECT 2;\n```\n```sh\nrm\n```\n\
                    ```sql,ignore\nno\n```\n  ```sql\n  SELECT 3;\n  ```\n";
    assert_eq!(
        sql_blocks(markdown),
        [
            Block {
                line: 3,
                sql: "SELECT 1;\nSELECT 2;\n".into()
            },
            Block {
                line: 13,
                sql: "  SELECT 3;\n".into()
            }
        ]
    );
}
