//! Reads the files of `tests/spec/cases`. The README and `schema.json` describe the format.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "$schema")]
    _schema: String,
    cases: Vec<Case>,
}

/// A named list of steps that are executed in order.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    pub steps: Vec<Step>,
}

/// A statement that must succeed, or a statement with its expected result.
#[derive(Deserialize)]
#[serde(try_from = "Value")]
pub enum Step {
    Statement(String),
    Call(Call),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    pub sql: String,
    #[serde(default = "first")]
    pub session: String,
    #[serde(default)]
    pub arguments: Vec<Value>,
    pub rows: Option<Vec<Vec<Value>>>,
    pub error: Option<ExpectedError>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedError {
    pub sqlstate: String,
    #[serde(default)]
    pub hint: String,
}

/// The name of the session that executes a step without a session name.
pub const FIRST_SESSION: &str = "first";

fn first() -> String {
    FIRST_SESSION.to_owned()
}

impl TryFrom<Value> for Step {
    type Error = serde_json::Error;

    // This is written by hand, because the errors of `#[serde(untagged)]` do not name an unknown
    // member.
    fn try_from(value: Value) -> Result<Self, Self::Error> {
        match value {
            Value::String(sql) => Ok(Self::Statement(sql)),
            other => {
                let call: Call = serde_json::from_value(other)?;
                if call.rows.is_some() && call.error.is_some() {
                    return Err(serde::de::Error::custom(
                        "a step has rows or an error, not both",
                    ));
                }
                Ok(Self::Call(call))
            }
        }
    }
}

impl Step {
    pub fn sql(&self) -> &str {
        match self {
            Self::Statement(sql) => sql,
            Self::Call(call) => &call.sql,
        }
    }
}

/// Returns the directory of the specification.
pub fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the name and the text of every file with cases, sorted by name.
pub fn texts() -> Result<Vec<(String, String)>> {
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(directory().join("cases"))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.ends_with(".json") {
            texts.push((name, std::fs::read_to_string(&path)?));
        }
    }
    texts.sort();
    Ok(texts)
}

/// Returns the cases in the text of a file. The name of each case starts with the name of the file
/// without `.json`.
pub fn parse(name: &str, text: &str) -> Result<Vec<Case>> {
    let file: File = serde_json::from_str(text).with_context(|| name.to_owned())?;
    let area = name.trim_end_matches(".json");
    let cases = file.cases.into_iter();
    Ok(cases
        .map(|case| Case {
            name: format!("{area}/{}", case.name),
            ..case
        })
        .collect())
}

/// Returns the cases of all files. Fails when there are fewer than 100 cases.
pub fn all() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (name, text) in texts()? {
        cases.extend(parse(&name, &text)?);
    }
    ensure!(cases.len() >= 100, "there are only {} cases", cases.len());
    Ok(cases)
}
