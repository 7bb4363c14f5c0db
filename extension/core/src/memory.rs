//! Memory for what comes from a caller. An allocation of Rust that fails ends the process, and
//! PostgreSQL restarts all sessions then: so where the size is the caller's, memory is asked for by
//! these functions, which can fail.

/// There is no memory for so many bytes: SQLSTATE 53200.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("out of memory")]
pub struct OutOfMemory {
    pub bytes: usize,
}

/// An empty list with room for so many elements.
pub fn reserve<T>(elements: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut list = Vec::new();
    reserve_more(&mut list, elements)?;
    Ok(list)
}

/// Adds an element.
pub fn push<T>(list: &mut Vec<T>, element: T) -> Result<(), OutOfMemory> {
    reserve_more(list, 1)?;
    list.push(element);
    Ok(())
}

/// Fails unless so many bytes can be allocated now. It protects PostgreSQL's own code that makes
/// many small allocations: when memory ends among those, PostgreSQL has none left to report the
/// error.
pub fn ensure(bytes: usize) -> Result<(), OutOfMemory> {
    reserve::<u8>(bytes).map(drop)
}

fn reserve_more<T>(list: &mut Vec<T>, elements: usize) -> Result<(), OutOfMemory> {
    list.try_reserve(elements).map_err(|_| OutOfMemory {
        bytes: elements.saturating_mul(size_of::<T>()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_fails() {
        let bytes = isize::MAX as usize;
        assert_eq!(reserve::<u8>(bytes), Err(OutOfMemory { bytes }));
        assert_eq!(
            reserve::<u64>(usize::MAX).map_err(|e| e.bytes),
            Err(usize::MAX)
        );
    }

    #[test]
    fn list_has_what_was_pushed() {
        let mut list = reserve(1).unwrap();
        for n in 0..100 {
            push(&mut list, n).unwrap();
        }
        assert_eq!(list, (0..100).collect::<Vec<_>>());
    }
}
