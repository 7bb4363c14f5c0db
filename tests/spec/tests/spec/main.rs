//! Tests with the specification cases of `tests/spec/cases`, executed with literals and with
//! untyped parameters.

mod broken;
mod coverage;
mod transfer;
mod untyped;

use std::collections::BTreeSet;

use anyhow::Result;
use idem_spec::{Case, all, directory, failures, texts};
use idem_testkit::Database;

use coverage::{uncovered, undocumented, unknown_cases};
use transfer::{TokioPostgres, Transfer};

/// Every case passes with literals, as psql sends them.
#[tokio::test]
async fn i10_cases_pass_with_literals() -> Result<()> {
    let db = Database::with_idem("spec_literals").await?;
    let mut driver = TokioPostgres::new(&db, Transfer::Literals);
    let failures = failures(&mut driver, &all()?).await;
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Every case passes with parameters of unknown type, as drivers send them, and in reverse order of
/// the cases.
#[tokio::test]
async fn i10_cases_pass_with_untyped_parameters() -> Result<()> {
    let db = Database::with_idem("spec_untyped").await?;
    let mut cases = all()?;
    cases.reverse();
    let mut driver = TokioPostgres::new(&db, Transfer::Untyped);
    let failures = failures(&mut driver, &cases).await;
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// At least one case executes each function of the API.
#[tokio::test]
async fn i10_every_function_has_a_case() -> Result<()> {
    let db = Database::with_idem("spec_coverage").await?;
    let session = db.connect().await?;
    let cases = all()?;
    assert_eq!(uncovered(&session, &cases).await?, Vec::<String>::new());
    session
        .run("CREATE FUNCTION idem_without_a_case() RETURNS void LANGUAGE sql AS ''")
        .await?;
    assert_eq!(uncovered(&session, &cases).await?, ["idem_without_a_case"]);
    Ok(())
}

/// The reference and the comment of each function name every SQLSTATE that a case expects.
#[tokio::test]
async fn i10_cases_expect_documented_sqlstates() -> Result<()> {
    let db = Database::with_idem("spec_documented").await?;
    let session = db.connect().await?;
    assert_eq!(undocumented(&session, &all()?).await?, BTreeSet::new());

    let call = serde_json::json!({
        "sql": "SELECT idem_is_claimed('m', 'd')", "error": {"sqlstate": "58030"}
    });
    let step = serde_json::from_value(call)?;
    let steps = vec![step];
    let name = "undocumented".to_owned();
    let reported = undocumented(&session, &[Case { name, steps }]).await?;
    assert_eq!(
        reported.into_iter().collect::<Vec<_>>(),
        [
            r#"the comment of {"idem_is_claimed"} does not name 58030"#,
            "the reference does not name 58030"
        ]
    );
    Ok(())
}

/// The names of cases are unique: a name in a report identifies one case.
#[test]
fn case_names_are_unique() -> Result<()> {
    let cases = all()?;
    let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len(), "two cases share a name");
    Ok(())
}

/// docs/spec.md names cases that exist, and the number of cases.
#[test]
fn page_of_the_specification_names_existing_cases() -> Result<()> {
    let page = std::fs::read_to_string(directory().join("../../docs/spec.md"))?;
    let cases = all()?;
    assert_eq!(unknown_cases(&page, &cases), Vec::<&str>::new());
    assert!(page.contains(&format!("`tests/spec/cases`: {} lists", cases.len())));
    let wrong = "a row with `claims/first_claim_wins` and `claims/no_such_case`";
    assert_eq!(unknown_cases(wrong, &cases), ["claims/no_such_case"]);
    Ok(())
}

/// The files match the schema that test runners in other languages rely on.
#[test]
fn spec_files_match_the_schema() -> Result<()> {
    let schema = broken::schema()?;
    for (name, text) in texts()? {
        let file = serde_json::from_str(&text)?;
        let errors: Vec<_> = schema
            .iter_errors(&file)
            .map(|e| format!("{}: {e}", e.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{name}: {errors:#?}");
    }
    Ok(())
}
