//! The files of `tests/spec`: see their README and `schema.json`.

use std::path::{Path, PathBuf};

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

/// Steps that are executed in order.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    pub steps: Vec<Step>,
}

/// A statement that must succeed, or a call whose result is specified.
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

/// The session of a step that names none.
pub const FIRST_SESSION: &str = "first";

fn first() -> String {
    FIRST_SESSION.to_owned()
}

impl TryFrom<Value> for Step {
    type Error = serde_json::Error;

    // Not `untagged`, which hides the name of an unknown member.
    fn try_from(value: Value) -> Result<Self, Self::Error> {
        match value {
            Value::String(sql) => Ok(Self::Statement(sql)),
            other => {
                let call: Call = serde_json::from_value(other)?;
                if call.rows.is_some() && call.error.is_some() {
                    return Err(serde::de::Error::custom("a call has rows or an error"));
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

/// The directory of the files.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("spec")
}

/// The text of every file with cases, by name.
pub fn texts() -> Result<Vec<(String, String)>> {
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(directory())? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.ends_with(".json") && name != "schema.json" {
            texts.push((name, std::fs::read_to_string(&path)?));
        }
    }
    texts.sort();
    Ok(texts)
}

/// The cases in a file's text. Their names begin with that of the file, without its ending.
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

/// All cases there are.
pub fn all() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (name, text) in texts()? {
        cases.extend(parse(&name, &text)?);
    }
    ensure!(cases.len() >= 100, "only {} cases", cases.len());
    Ok(cases)
}
