//! Tests of wrong cases: the runner reports each case that fails, and the schema and the runner
//! reject files with a wrong format.

use anyhow::{Context, Result, anyhow};
use idem_spec::{directory, failures, parse};
use idem_testkit::Database;
use jsonschema::Validator;
use serde_json::{Value, json};

use super::transfer::{TokioPostgres, Transfer};

/// Returns the validator of `schema.json`.
pub fn schema() -> Result<Validator> {
    let text = std::fs::read_to_string(directory().join("schema.json"))?;
    jsonschema::validator_for(&serde_json::from_str(&text)?).map_err(|error| anyhow!("{error}"))
}

/// Returns a file with one case: `step`, and a step that passes.
fn file(step: &Value) -> Value {
    let holds = json!({"sql": "SELECT true", "rows": [[true]]});
    json!({"$schema": "../schema.json", "cases": [{"name": "broken", "steps": [step, holds]}]})
}

/// Returns steps that are well formed and fail, each with a part of the report.
fn broken_steps() -> Vec<(Value, &'static str)> {
    let claimed = "SELECT idem_is_claimed($1, 'broken')";
    let hint = "It must have 1 to 1024 bytes.";
    vec![
        (json!("SELECT idem_is_claimed('', 'broken')"), "22023"),
        (
            json!({"sql": claimed, "arguments": [""]}),
            "the statement fails",
        ),
        (
            json!({"sql": claimed, "arguments": ["m"], "rows": [[true]]}),
            "expected true",
        ),
        (
            json!({"sql": claimed, "arguments": ["m"], "rows": [[null]]}),
            "expected null",
        ),
        (
            json!({"sql": claimed, "arguments": ["m"], "rows": []}),
            "expected 0 rows",
        ),
        (
            json!({"sql": claimed, "arguments": ["m"], "rows": [[false, 1]]}),
            "expected 2 columns",
        ),
        (
            json!({"sql": claimed, "arguments": ["m"], "rows": [[{"any": "uuid"}]]}),
            "expected {",
        ),
        (
            json!({"sql": claimed, "arguments": ["m"], "rows": [[{"saved": "token"}]]}),
            "no row has saved",
        ),
        (
            json!({"sql": claimed, "arguments": [{"saved": "token"}], "rows": [[false]]}),
            "no row has saved",
        ),
        (
            json!({"sql": claimed, "arguments": ["m"], "error": {"sqlstate": "22023"}}),
            "expected error",
        ),
        (
            json!({
                "sql": claimed, "arguments": [""], "error": {"sqlstate": "22004", "hint": hint}
            }),
            "expected SQLSTATE 22004",
        ),
        (
            json!({
                "sql": claimed,
                "arguments": [""],
                "error": {"sqlstate": "22023", "hint": "Give an id."}
            }),
            "expected hint",
        ),
        (
            json!({"sql": claimed, "arguments": [""], "error": {"sqlstate": "22023"}}),
            "expected hint",
        ),
        (
            json!({"sql": "SELECT ARRAY[true, false]", "rows": [[[true, true]]]}),
            "expected [",
        ),
        (
            json!({"sql": "SELECT ARRAY[true, false]", "rows": [[[true]]]}),
            "expected [",
        ),
        (
            json!({"sql": "SELECT jsonb '{\"a\": 1}'", "rows": [[{"json": {"a": 2}}]]}),
            "expected {",
        ),
        (
            json!({"sql": "SELECT bytea '\\x00'", "rows": [[{"bytes": "AQ=="}]]}),
            "expected {",
        ),
    ]
}

/// The runner reports each step that fails, with the reason.
#[tokio::test]
async fn broken_case_is_reported() -> Result<()> {
    let db = Database::with_idem("spec_broken").await?;
    let schema = schema()?;
    for (step, part) in broken_steps() {
        let file = file(&step);
        assert!(schema.is_valid(&file), "{step} is not well formed");
        let cases = parse("broken.json", &file.to_string())?;
        for transfer in [Transfer::Literals, Transfer::Untyped] {
            let report = failures(&mut TokioPostgres::new(&db, transfer), &cases).await;
            let line = report
                .first()
                .with_context(|| format!("{step} passes ({transfer:?})"))?;
            assert!(
                line.starts_with("broken/broken") && line.contains(part),
                "{line}"
            );
        }
    }
    Ok(())
}

/// The schema and the runner both reject a step with a member that the format does not have.
#[tokio::test]
async fn malformed_case_is_reported() -> Result<()> {
    let db = Database::with_idem("spec_malformed").await?;
    let schema = schema()?;
    for step in [
        json!({"sql": "SELECT true", "row": [[true]]}),
        json!({"rows": [[true]]}),
        json!({
            "sql": "SELECT 1 / 0",
            "error": {"sqlstate": "22012", "message": "division by zero"}
        }),
        json!({"sql": "SELECT 1", "rows": [[{"any": "number"}]]}),
        json!({"sql": "SELECT 1", "rows": [[{"any": "integer", "as": "one"}]]}),
        json!({"sql": "SELECT $1", "arguments": [{"bytes": "?"}], "rows": [["x"]]}),
        json!({"sql": "SELECT $1", "arguments": [{"text": "x"}], "rows": [["x"]]}),
        json!({"sql": "SELECT true", "rows": [[true]], "error": {"sqlstate": "22023"}}),
    ] {
        let file = file(&step);
        assert!(!schema.is_valid(&file), "the schema accepts {step}");
        match parse("broken.json", &file.to_string()) {
            Err(_) => continue,
            Ok(cases) => {
                let mut driver = TokioPostgres::new(&db, Transfer::Untyped);
                let report = failures(&mut driver, &cases).await;
                assert!(!report.is_empty(), "the runner accepts {step}");
            }
        }
    }
    Ok(())
}
