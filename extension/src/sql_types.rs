//! Argument and result types that pgrx does not have.

use crate::errors::{Error, Result};
use idem_core::memory;
use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{FromDatum, pg_sys};
use std::ffi::CStr;

/// A `jsonb` argument as text. Its values are passed on as text and not converted, so numbers keep
/// their digits. The text is in PostgreSQL's memory and lives until the function returns.
pub struct JsonText(&'static str);

impl JsonText {
    pub fn as_str(&self) -> &str {
        self.0
    }
}

/// Fails with 53200 unless PostgreSQL can allocate `times` bytes for each byte of a value.
fn ensure_memory(bytes: usize, times: usize) {
    if let Err(error) = memory::ensure(bytes.saturating_mul(times)) {
        Error::from(error).raise();
    }
}

impl FromDatum for JsonText {
    unsafe fn from_polymorphic_datum(
        datum: pg_sys::Datum,
        is_null: bool,
        _: pg_sys::Oid,
    ) -> Option<Self> {
        if is_null {
            return None;
        }
        /// The bytes needed for each byte of a value: a copy of the value, its text, and an
        /// allocation for each number.
        const NEEDED: usize = 8;
        // SAFETY: the datum is a jsonb.
        ensure_memory(unsafe { pg_sys::toast_raw_datum_size(datum) }, NEEDED);
        // SAFETY: the datum is a jsonb; jsonb_out returns a NUL-terminated string in the memory
        // context of the function call.
        let text: Option<&CStr> =
            unsafe { pgrx::direct_function_call(pg_sys::jsonb_out, &[Some(datum)]) };
        // The database is UTF-8: the install script requires it.
        Some(JsonText(text?.to_str().ok()?))
    }
}

// SAFETY: the argument is unboxed with FromDatum, which handles every jsonb.
unsafe impl<'fcx> ArgAbi<'fcx> for JsonText {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: pgrx calls this only for a jsonb that is not NULL; it handles NULL in
        // `Option<JsonText>`. The text is UTF-8, so the fallback is not reached. An empty text is
        // not JSON, so it cannot be taken for a value.
        unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or(JsonText(""))
    }
}

// SAFETY: this type is jsonb in SQL.
unsafe impl SqlTranslatable for JsonText {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(JsonText);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: std::result::Result<SqlMappingRef, ArgumentError> =
        Ok(SqlMappingRef::literal("jsonb"));
    const RETURN_SQL: std::result::Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("jsonb")));
}

/// Converts JSON text to a jsonb datum.
pub fn jsonb_datum(text: &str) -> Result<Option<pg_sys::Datum>> {
    /// The memory, in bytes, that is needed for each byte of text. jsonb_in needs this much for an
    /// array of short elements.
    const NEEDED: usize = 64;
    ensure_memory(text.len(), NEEDED);
    // SAFETY: the copy ends with NUL, as jsonb_in requires. PostgreSQL allocates it and raises an
    // error if it is too long.
    Ok(unsafe {
        let text = pg_sys::pnstrdup(text.as_ptr().cast(), text.len());
        let text = [Some(pg_sys::Datum::from(text))];
        pgrx::direct_function_call_as_datum(pg_sys::jsonb_in, &text)
    })
}

/// A row of the function's own result type.
pub struct CompositeDatum(pg_sys::Datum);

impl CompositeDatum {
    /// Builds a row of an enum value and all other columns. The enum type is the type of the first
    /// result column. It is not looked up by name, so search_path has no influence.
    pub fn labelled(
        fcinfo: pg_sys::FunctionCallInfo,
        label: &CStr,
        others: &[Option<pg_sys::Datum>],
    ) -> Result<Self> {
        let desc = result_row(fcinfo)?;
        let value = enum_datum(desc, 1, label)?;
        let columns = || [Some(value)].into_iter().chain(others.iter().copied());
        // SAFETY: the SQL function declares this row type, and the caller passes values of the
        // types of its columns. The number of columns is checked below.
        unsafe {
            if (*desc).natts as usize != 1 + others.len() {
                return Err(Error::Corrupt(
                    "the result type of a function has other columns than expected",
                ));
            }
            let mut values: Vec<_> = columns()
                .map(|value| value.unwrap_or(pg_sys::Datum::from(0)))
                .collect();
            let mut nulls: Vec<_> = columns().map(|value| value.is_none()).collect();
            let tuple = pg_sys::heap_form_tuple(desc, values.as_mut_ptr(), nulls.as_mut_ptr());
            Ok(CompositeDatum(pg_sys::HeapTupleHeaderGetDatum(
                (*tuple).t_data,
            )))
        }
    }
}

/// Returns the descriptor of the function's result row.
pub fn result_row(fcinfo: pg_sys::FunctionCallInfo) -> Result<pg_sys::TupleDesc> {
    // SAFETY: fcinfo is that of the running function.
    unsafe {
        let mut desc: pg_sys::TupleDesc = std::ptr::null_mut();
        let class = pg_sys::get_call_result_type(fcinfo, std::ptr::null_mut(), &mut desc);
        if class != pg_sys::TypeFuncClass::TYPEFUNC_COMPOSITE || desc.is_null() {
            return Err(Error::Corrupt("the result type of a function is not a row"));
        }
        Ok(pg_sys::BlessTupleDesc(desc))
    }
}

/// Returns the enum value with this label. The enum is the type of the given column, counted from
/// 1.
pub fn enum_datum(desc: pg_sys::TupleDesc, column: i32, label: &CStr) -> Result<pg_sys::Datum> {
    // SAFETY: the descriptor comes from result_row. A number beyond its columns has no type, and
    // then no value is found.
    unsafe {
        let enum_type = pg_sys::SPI_gettypeid(desc, column);
        let mut name: pg_sys::NameData = std::mem::zeroed();
        pg_sys::namestrcpy(&mut name, label.as_ptr());
        let row = pg_sys::SearchSysCache2(
            pg_sys::SysCacheIdentifier::ENUMTYPOIDNAME as i32,
            pg_sys::Datum::from(enum_type),
            pg_sys::Datum::from(&raw mut name),
        );
        if row.is_null() {
            return Err(Error::Corrupt("the enum type of a result lacks a value"));
        }
        let value = (*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_enum>()).oid;
        pg_sys::ReleaseSysCache(row);
        Ok(pg_sys::Datum::from(value))
    }
}

// SAFETY: the datum is a row in the memory context of the function call.
unsafe impl BoxRet for CompositeDatum {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> pgrx::datum::Datum<'fcx> {
        // SAFETY: the datum is a row in the memory context of the function call.
        unsafe { fcinfo.return_raw_datum(self.0) }
    }
}

// SAFETY: functions that return this type declare their SQL themselves.
unsafe impl SqlTranslatable for CompositeDatum {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(CompositeDatum);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: std::result::Result<SqlMappingRef, ArgumentError> =
        Ok(SqlMappingRef::literal("record"));
    const RETURN_SQL: std::result::Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("record")));
}
