//! The specification cases, executed by the drivers of several languages.

mod consumers;
mod link;
mod native;
mod node;
mod pgbouncer;
mod python;

use anyhow::{Context, Result, ensure};
use idem_drivers::Psql;
use idem_spec::{Case, Driver, all, failures, parse};
use idem_testkit::Database;
use serde_json::{Value, json};

/// A case that a driver cannot pass, and a part of its failure. docs/languages.md has the reasons.
type Known<'a> = (&'a str, &'a str);

/// Executes all cases. Fails if a case fails that is not in `known`, or if a case in `known` passes
/// or fails in another way. Fails too if a case with a wrong result passes.
async fn ensure_passes_all(driver: &mut impl Driver, known: &[Known<'_>]) -> Result<()> {
    ensure_passes(driver, &all()?, known).await
}

/// Executes these cases as [`ensure_passes_all`] does.
async fn ensure_passes(
    driver: &mut impl Driver,
    cases: &[Case],
    known: &[Known<'_>],
) -> Result<()> {
    ensure!(cases.len() > known.len(), "no case can pass");
    let failed = failures(driver, cases).await;
    let is_known = |line: &String| {
        known
            .iter()
            .any(|(case, part)| line.starts_with(&format!("{case}: ")) && line.contains(part))
    };
    let (expected, failed): (Vec<_>, Vec<_>) = failed.into_iter().partition(is_known);
    ensure!(
        failed.is_empty(),
        "{} of {} cases fail:\n{failed:#?}",
        failed.len(),
        cases.len(),
    );
    ensure!(
        expected.len() == known.len(),
        "only these fail: {expected:#?}"
    );
    println!(
        "{} of {} cases pass",
        cases.len() - known.len(),
        cases.len()
    );
    for (step, part) in wrong_steps() {
        let file = json!({"$schema": "", "cases": [{"name": "wrong", "steps": [step]}]});
        let failed = failures(driver, &parse("wrong.json", &file.to_string())?).await;
        let line = failed
            .first()
            .with_context(|| format!("the driver passes {step}"))?;
        ensure!(line.contains(part), "{step}: {line}");
    }
    Ok(())
}

/// Returns steps with a wrong result, each with a part of the report.
fn wrong_steps() -> Vec<(Value, &'static str)> {
    vec![
        (
            json!({"sql": "SELECT true", "rows": [[false]]}),
            "expected false",
        ),
        (
            json!({"sql": "SELECT 't'::text", "rows": [["f"]]}),
            "expected \"f\"",
        ),
        (json!({"sql": "SELECT 1", "rows": [[2]]}), "expected 2"),
        (
            json!({"sql": "SELECT NULL", "rows": [["x"]]}),
            "expected \"x\"",
        ),
        (
            json!({"sql": "SELECT 1", "rows": [[null]]}),
            "expected null",
        ),
        (json!({"sql": "SELECT 1", "rows": []}), "expected 0 rows"),
        (
            json!({"sql": "SELECT 1", "rows": [[1, 1]]}),
            "expected 2 columns",
        ),
        (
            json!({"sql": "SELECT bytea '\\x00'", "rows": [[{"bytes": "AQ=="}]]}),
            "expected {",
        ),
        (
            json!({"sql": "SELECT jsonb '[1]'", "rows": [[{"json": [2]}]]}),
            "expected {",
        ),
        (
            json!({"sql": "SELECT ARRAY['a']", "rows": [[["b"]]]}),
            "expected [",
        ),
        (
            json!({"sql": "SELECT gen_random_uuid()", "rows": [[{"any": "integer"}]]}),
            "expected {",
        ),
        (
            json!({"sql": "SELECT 1/0", "error": {"sqlstate": "22023"}}),
            "expected SQLSTATE 22023",
        ),
        (
            json!({"sql": "SELECT idem_is_claimed('', 'd')", "error": {"sqlstate": "22023"}}),
            "expected hint",
        ),
        (json!("SELECT 1/0"), "22012"),
    ]
}

#[tokio::test]
async fn psql_passes_the_cases() -> Result<()> {
    let db = Database::with_idem("drivers_psql").await?;
    ensure_passes_all(&mut Psql::new(&db), &[]).await
}
