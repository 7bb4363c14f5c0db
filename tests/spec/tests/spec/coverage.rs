//! Finds the API functions that no case executes, and the SQLSTATEs of cases that the documentation
//! does not name.

use std::collections::BTreeSet;

use anyhow::Result;
use idem_spec::{Case, Step, directory};
use idem_testkit::Session;

use crate::untyped::catalog::functions;

/// Returns the functions of the API that no case executes.
pub async fn uncovered(session: &Session, cases: &[Case]) -> Result<Vec<String>> {
    let called: BTreeSet<&str> = steps(cases).flat_map(|step| names_in(step.sql())).collect();
    let functions = functions(session).await?.into_keys();
    Ok(functions
        .filter(|name| !called.contains(name.as_str()))
        .collect())
}

/// Returns a line for each function, and for each SQLSTATE of a case, that the reference does not
/// name, and a line for each SQLSTATE that the comment of the executed function does not name.
pub async fn undocumented(session: &Session, cases: &[Case]) -> Result<BTreeSet<String>> {
    let path = directory().join("../../docs/reference.md");
    let reference = std::fs::read_to_string(path)?;
    let functions = functions(session).await?;
    let mut undocumented: BTreeSet<_> = functions
        .keys()
        .filter(|name| !reference.contains(&format!("{name}(")))
        .map(|name| format!("the reference does not name {name}"))
        .collect();
    for (sql, sqlstate) in steps(cases).filter_map(expected_error) {
        if !reference.contains(sqlstate) {
            undocumented.insert(format!("the reference does not name {sqlstate}"));
        }
        let called: BTreeSet<_> = names_in(sql)
            .filter(|name| functions.contains_key(*name))
            .collect();
        let mut overloads = called.iter().flat_map(|name| &functions[*name]);
        // The input functions of PostgreSQL's types raise 22P02 before the API function runs, so
        // the comment of the API function does not name 22P02.
        if sqlstate != "22P02"
            && !called.is_empty()
            && !overloads.any(|o| o.comment.contains(sqlstate))
        {
            undocumented.insert(format!(
                "the comment of {called:?} does not name {sqlstate}"
            ));
        }
    }
    Ok(undocumented)
}

/// Returns the names in a table of a page, such as `claims/first_claim_wins`, that no case has.
pub fn unknown_cases<'p>(page: &'p str, cases: &[Case]) -> Vec<&'p str> {
    let quoted = page.split('`').skip(1).step_by(2);
    let is_case = |text: &&str| {
        let is_letter = |c: char| c == '_' || c.is_ascii_lowercase();
        let parts: Vec<_> = text.split('/').collect();
        parts.len() == 2 && parts.iter().all(|part| part.chars().all(is_letter))
    };
    quoted
        .filter(is_case)
        .filter(|name| !cases.iter().any(|case| case.name == *name))
        .collect()
}

fn expected_error(step: &Step) -> Option<(&str, &str)> {
    match step {
        Step::Call(call) => call
            .error
            .as_ref()
            .map(|error| (call.sql.as_str(), error.sqlstate.as_str())),
        Step::Statement(_) => None,
    }
}

fn steps(cases: &[Case]) -> impl Iterator<Item = &Step> {
    cases.iter().flat_map(|case| &case.steps)
}

/// Returns the words of a statement. A word consists of ASCII letters, digits and underscores.
fn names_in(sql: &str) -> impl Iterator<Item = &str> {
    sql.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
}
