//! The SQL in the documentation runs, as it stands there.
//!
//! Each file gets a database of its own with the extension, and its ```` ```sql ```` blocks in their order. What is no SQL for
//! psql is marked ```` ```sql,ignore ````.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use idem_cluster::{Cluster, Install, workspace_root};
use idem_tests::harness::{Database, Session};

/// The files whose readers come for SQL.
const TELL_SQL: [&str; 4] = ["README.md", "docs/consumers.md", "docs/relays.md", "docs/operations.md"];

/// A fenced block: the line of its first line, and its text.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    line: usize,
    sql: String,
}

/// A server of its own, because documentation creates roles and changes settings.
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
            !blocks.is_empty() || !TELL_SQL.contains(&name.as_str()),
            "{name} has no ```sql block"
        );
        run(&cluster, &name, &blocks).await?;
    }
    Ok(())
}

async fn run(cluster: &Arc<Cluster>, file: &str, blocks: &[Block]) -> Result<()> {
    let db = Database::with_idem_in(Arc::clone(cluster), "docs").await?;
    for Block { line, sql } in blocks {
        // By psql, statement by statement, as a reader would.
        cluster
            .psql(db.name(), sql)
            .with_context(|| format!("{file}:{line}:\n{sql}"))?;
    }
    // The next file starts with nothing that this one has made.
    let admin = Session::connect(cluster, "postgres", "postgres").await?;
    admin.run("ALTER SYSTEM RESET ALL").await?;
    drop(db);
    cluster.psql(
        "postgres",
        "SELECT format('DROP ROLE %I', rolname) FROM pg_roles WHERE oid >= 16384 \\gexec",
    )?;
    Ok(())
}

/// README, ARCHITECTURE, everything in docs, and the client's.
fn files() -> Result<Vec<PathBuf>> {
    let root = workspace_root();
    let mut files = vec![
        root.join("README.md"),
        root.join("ARCHITECTURE.md"),
        root.join("client/README.md"),
    ];
    for entry in fs::read_dir(root.join("docs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    for expected in TELL_SQL {
        ensure!(
            files.iter().any(|file| file == &root.join(Path::new(expected))),
            "{expected} is not there"
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

#[test]
fn only_blocks_of_sql_are_taken() {
    let markdown =
        "text\n```sql\nSELECT 1;\nSELECT 2;\n```\n```sh\nrm\n```\n```sql,ignore\nno\n```\n  ```sql\n  SELECT 3;\n  ```\n";
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
