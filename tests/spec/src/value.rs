//! Writes the arguments of a case as text and compares results with expected values.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use uuid::Uuid;

/// The values that the steps of a case have saved, by name: texts, or numbers of a driver that has
/// decoded them.
pub type Saved = BTreeMap<String, Value>;

/// One value of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    Null,
    /// A value in the text form of PostgreSQL. It may be an array.
    Text(String),
    Array(Vec<Cell>),
    /// A value that the driver has decoded: a value of the same form as in `rows` of a case.
    Decoded(Value),
}

impl From<Value> for Cell {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            value => Self::Decoded(value),
        }
    }
}

/// Returns an argument in the text form of PostgreSQL; `None` is NULL.
pub fn text_of(argument: &Value, saved: &Saved) -> Result<Option<String>> {
    Ok(Some(match argument {
        Value::Null => return Ok(None),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(elements) => array_literal(elements)?,
        Value::Object(object) => match members(object).as_slice() {
            [("json", json)] => json.to_string(),
            [("bytes", Value::String(base64))] => bytea(base64)?,
            [("repeat", Value::String(text)), ("times", times)] => text.repeat(usize::try_from(
                times.as_u64().context("times is not a number")?,
            )?),
            [("saved", Value::String(name))] => return text_of(find(saved, name)?, saved),
            _ => bail!("not an argument: {argument}"),
        },
    }))
}

/// Returns an argument for a driver with typed values: null, a boolean, a number, a text, an array,
/// `{"bytes": …}` or `{"json": …}`.
pub fn plain_of(argument: &Value, saved: &Saved) -> Result<Value> {
    let Value::Object(object) = argument else {
        return Ok(argument.clone());
    };
    Ok(match members(object).as_slice() {
        [("bytes", Value::String(_)) | ("json", _)] => argument.clone(),
        [("saved", Value::String(name))] => find(saved, name)?.clone(),
        _ => text_of(argument, saved)?.into(),
    })
}

/// Returns an argument as a literal: a number or a boolean without quotes, everything else in
/// quotes.
fn literal_of(argument: &Value, saved: &Saved) -> Result<String> {
    Ok(match (argument, text_of(argument, saved)?) {
        (_, None) => "NULL".to_owned(),
        (Value::Bool(_) | Value::Number(_), Some(text)) => text,
        (_, Some(text)) => format!("'{}'", text.replace('\'', "''")),
    })
}

/// Replaces `$1`, `$2`… by literals, the highest number first because `$10` contains `$1`.
pub fn with_literals(sql: &str, arguments: &[Value], saved: &Saved) -> Result<String> {
    let mut sql = sql.to_owned();
    for (n, argument) in arguments.iter().enumerate().rev() {
        let parameter = format!("${}", n + 1);
        if !sql.contains(&parameter) {
            bail!("{sql} has no {parameter}");
        }
        sql = sql.replace(&parameter, &literal_of(argument, saved)?);
    }
    Ok(sql)
}

/// Saves the cell when the expected value has a member `save`. Fails, with both values in the
/// error, when the cell does not match the expected value.
pub fn check(expected: &Value, cell: &Cell, saved: &mut Saved) -> Result<()> {
    if matches(expected, cell, saved)? {
        return Ok(());
    }
    bail!("expected {expected}, got {cell:?}")
}

fn matches(expected: &Value, cell: &Cell, saved: &mut Saved) -> Result<bool> {
    match (expected, cell) {
        (Value::Null, _) => Ok(*cell == Cell::Null),
        (Value::Array(expected), Cell::Array(cells)) => all_match(expected, cells, saved),
        (Value::Array(expected), Cell::Text(text)) => match elements_of(text)? {
            Some(cells) => all_match(expected, &cells, saved),
            None => Ok(false),
        },
        (_, Cell::Text(text)) => matches_text(expected, text, saved),
        (_, Cell::Decoded(value)) => matches_decoded(expected, value, saved),
        _ => Ok(false),
    }
}

fn all_match(expected: &[Value], cells: &[Cell], saved: &mut Saved) -> Result<bool> {
    for (expected, cell) in expected.iter().zip(cells) {
        if !matches(expected, cell, saved)? {
            return Ok(false);
        }
    }
    Ok(expected.len() == cells.len())
}

fn matches_text(expected: &Value, text: &str, saved: &mut Saved) -> Result<bool> {
    Ok(match expected {
        Value::Bool(value) => text == if *value { "t" } else { "f" },
        Value::Number(number) => text == number.to_string(),
        Value::String(string) => text == string,
        Value::Object(object) => match members(object).as_slice() {
            [("json", json)] => {
                serde_json::from_str::<Value>(text).is_ok_and(|value| value == **json)
            }
            [("bytes", Value::String(base64))] => text == bytea(base64)?,
            [("saved", Value::String(name))] => find(saved, name)? == text,
            [("any", Value::String(pattern))] => is_like(pattern, text)?,
            [
                ("any", Value::String(pattern)),
                ("save", Value::String(name)),
            ] => {
                saved.insert(name.clone(), text.into());
                is_like(pattern, text)?
            }
            _ => bail!("not an expected value: {expected}"),
        },
        _ => false,
    })
}

fn matches_decoded(expected: &Value, value: &Value, saved: &mut Saved) -> Result<bool> {
    Ok(match (expected, value) {
        (Value::Array(expected), Value::Array(values)) => {
            let cells: Vec<_> = values.iter().cloned().map(Cell::from).collect();
            all_match(expected, &cells, saved)?
        }
        (Value::Object(object), _) => match members(object).as_slice() {
            [("saved", Value::String(name))] => find(saved, name)? == value,
            [("any", Value::String(pattern))] => is_decoded_like(pattern, value)?,
            [
                ("any", Value::String(pattern)),
                ("save", Value::String(name)),
            ] => {
                saved.insert(name.clone(), value.clone());
                is_decoded_like(pattern, value)?
            }
            [("json", _)] | [("bytes", Value::String(_))] => expected == value,
            _ => bail!("not an expected value: {expected}"),
        },
        _ => expected == value,
    })
}

fn is_decoded_like(pattern: &str, value: &Value) -> Result<bool> {
    Ok(match value {
        Value::Number(number) => is_like(pattern, &number.to_string())? && pattern == "integer",
        Value::String(text) => is_like(pattern, text)? && pattern != "integer",
        _ => false,
    })
}

fn is_like(pattern: &str, text: &str) -> Result<bool> {
    Ok(match pattern {
        "integer" => text.parse::<i64>().is_ok(),
        "uuid" => Uuid::try_parse(text).is_ok(),
        "text" => true,
        _ => bail!("unknown pattern \"{pattern}\""),
    })
}

fn find<'a>(saved: &'a Saved, name: &str) -> Result<&'a Value> {
    saved
        .get(name)
        .with_context(|| format!("no row has saved \"{name}\""))
}

/// Returns the members of an object, sorted by name.
fn members(object: &serde_json::Map<String, Value>) -> Vec<(&str, &Value)> {
    let mut members: Vec<_> = object
        .iter()
        .map(|(name, value)| (name.as_str(), value))
        .collect();
    members.sort_by_key(|(name, _)| *name);
    members
}

fn array_literal(elements: &[Value]) -> Result<String> {
    let mut parts = Vec::new();
    for element in elements {
        parts.push(match element {
            Value::Null => "NULL".to_owned(),
            Value::String(text) => {
                format!("\"{}\"", text.replace('\\', r"\\").replace('"', r#"\""#))
            }
            other => bail!("{other} is not a text or null, as the elements of an array must be"),
        });
    }
    Ok(format!("{{{}}}", parts.join(",")))
}

/// Decodes base64 and returns the bytes in the text form of a `bytea`.
fn bytea(base64: &str) -> Result<String> {
    let bytes = BASE64_STANDARD.decode(base64);
    Ok(hex(&bytes.with_context(|| format!("not base64: {base64}"))?))
}

/// Returns the text form of a `bytea`.
pub fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\\x{digits}")
}

/// Returns the elements of an array in its text form, or `None` when the text is not an array.
/// Fails when an element has quotes or is an array.
fn elements_of(text: &str) -> Result<Option<Vec<Cell>>> {
    let Some(inner) = text
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix('}'))
    else {
        return Ok(None);
    };
    ensure!(
        !inner.contains(['"', '\\', '{']),
        "cast this array to text: {text}"
    );
    let elements = inner.split(',').filter(|element| !element.is_empty());
    Ok(Some(
        elements
            .map(|element| Cell::Text(element.to_owned()))
            .collect(),
    ))
}
