// Spring over pgJDBC: JdbcTemplate in a transaction of Spring.

import com.fasterxml.jackson.databind.JsonNode;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.SynchronousQueue;
import java.util.function.Consumer;
import org.postgresql.util.PSQLException;
import org.springframework.aop.framework.ProxyFactory;
import org.springframework.core.NestedRuntimeException;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.SingleConnectionDataSource;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.annotation.AnnotationTransactionAttributeSource;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.interceptor.TransactionInterceptor;
import org.springframework.transaction.support.TransactionTemplate;

final class SpringSession implements Main.Session {
    /** Work in a transaction. Its proxy is one that Spring makes for a bean. */
    public interface Service {
        void run(Runnable work);
    }

    private static final class TransactionalService implements Service {
        @Override
        @Transactional
        public void run(Runnable work) {
            work.run();
        }
    }

    /** The work fails with this error to roll back. */
    private static final class RolledBack extends RuntimeException {
        private static final long serialVersionUID = 1;
    }

    private final SingleConnectionDataSource source;
    private final JdbcTemplate template;
    private final PlatformTransactionManager manager;
    private final Service service;
    private OpenTransaction open;

    SpringSession(Connection connection) {
        source = new SingleConnectionDataSource(connection, true);
        template = new JdbcTemplate(source);
        manager = new DataSourceTransactionManager(source);
        ProxyFactory proxy = new ProxyFactory(new TransactionalService());
        AnnotationTransactionAttributeSource annotations =
                new AnnotationTransactionAttributeSource();
        proxy.addAdvice(new TransactionInterceptor(manager, annotations));
        service = (Service) proxy.getProxy();
    }

    @Override
    public List<List<Object>> execute(String sql, JsonNode arguments) throws Exception {
        try {
            return run(sql, arguments);
        } catch (NestedRuntimeException error) {
            // Spring translates the error of the driver, which is the cause.
            if (error.getMostSpecificCause() instanceof PSQLException cause) {
                throw cause;
            }
            throw error;
        }
    }

    private List<List<Object>> run(String sql, JsonNode arguments) throws Exception {
        if (sql.startsWith("BEGIN")) {
            open = new OpenTransaction(transaction(sql));
            return List.of();
        }
        if (open == null) {
            return statement(sql, arguments);
        }
        if (!sql.equals("COMMIT") && !sql.equals("ROLLBACK")) {
            return open.execute(() -> statement(sql, arguments));
        }
        OpenTransaction ending = open;
        open = null;
        ending.end(sql.equals("COMMIT"));
        return List.of();
    }

    private List<List<Object>> statement(String sql, JsonNode arguments) {
        return template.execute(
                (Connection connection) -> Main.prepare(connection, sql, arguments),
                (PreparedStatement statement) -> Main.results(statement));
    }

    /** Returns the transaction of Spring for a BEGIN. Only a plain BEGIN is always the same. */
    private Consumer<Runnable> transaction(String begin) {
        if (begin.equals("BEGIN")) {
            return service::run;
        }
        TransactionTemplate transaction = new TransactionTemplate(manager);
        String isolation = "BEGIN ISOLATION LEVEL ";
        if (begin.startsWith(isolation)) {
            String level = begin.substring(isolation.length()).replace(' ', '_');
            transaction.setIsolationLevelName("ISOLATION_" + level);
        } else if (begin.equals("BEGIN READ ONLY")) {
            transaction.setReadOnly(true);
        } else {
            throw new IllegalArgumentException(begin);
        }
        return work -> transaction.execute(status -> {
            work.run();
            return null;
        });
    }

    @Override
    public void close() throws Exception {
        if (open != null) {
            open.end(false);
        }
        source.destroy();
    }

    /** A transaction in a thread of its own, because Spring ends it when the work returns. */
    private static final class OpenTransaction {
        private static final FutureTask<List<List<Object>>> COMMIT = new FutureTask<>(List::of);
        private static final FutureTask<List<List<Object>>> ROLLBACK = new FutureTask<>(List::of);

        private final SynchronousQueue<FutureTask<List<List<Object>>>> statements =
                new SynchronousQueue<>();
        private final CompletableFuture<Void> begun = new CompletableFuture<>();
        private final CompletableFuture<Void> ended;

        OpenTransaction(Consumer<Runnable> transaction) throws Exception {
            ended = CompletableFuture.runAsync(
                    () -> transaction.accept(this::work), work -> new Thread(work).start());
            result(CompletableFuture.anyOf(begun, ended));
        }

        private void work() {
            begun.complete(null);
            FutureTask<List<List<Object>>> next = next();
            while (next != COMMIT && next != ROLLBACK) {
                next.run();
                next = next();
            }
            if (next == ROLLBACK) {
                throw new RolledBack();
            }
        }

        private FutureTask<List<List<Object>>> next() {
            try {
                return statements.take();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }

        List<List<Object>> execute(Callable<List<List<Object>>> statement) throws Exception {
            FutureTask<List<List<Object>>> task = new FutureTask<>(statement);
            statements.put(task);
            return result(task);
        }

        void end(boolean commit) throws Exception {
            statements.put(commit ? COMMIT : ROLLBACK);
            try {
                result(ended);
            } catch (RolledBack expected) {
                // The work has thrown it.
            }
        }

        private static <T> T result(Future<T> future) throws Exception {
            try {
                return future.get();
            } catch (ExecutionException error) {
                throw (Exception) error.getCause();
            }
        }
    }
}
