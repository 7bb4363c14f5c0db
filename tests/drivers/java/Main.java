// Executes statements with a driver of Java: `Main pgjdbc` or `Main spring`, which is Spring over
// pgJDBC. A further argument is a property of pgJDBC: `prepareThreshold=0`. Reads requests from the
// standard input and writes replies to the standard output, as tests/drivers/README.md describes.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.Socket;
import java.net.SocketAddress;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.sql.Array;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Types;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.SocketFactory;
import org.postgresql.util.PGobject;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

public final class Main {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Pattern PARAMETER = Pattern.compile("\\$(\\d+)");

    /** A session in autocommit mode. */
    interface Session {
        List<List<Object>> execute(String sql, JsonNode arguments) throws Exception;

        void close() throws Exception;
    }

    interface Driver {
        /** Returns a session on this connection, which the session closes. */
        Session open(Connection connection);
    }

    private static final Map<String, Driver> DRIVERS =
            Map.of("pgjdbc", PgjdbcSession::new, "spring", SpringSession::new);

    private final Map<String, Session> sessions = new HashMap<>();
    private final Driver driver;
    private final Properties properties = new Properties();

    private Main(String[] arguments) {
        driver = DRIVERS.get(arguments[0]);
        properties.setProperty("user", System.getenv("PGUSER"));
        // A string has no declared type then, so it can be an argument for jsonb, uuid, interval…
        properties.setProperty("stringtype", "unspecified");
        properties.setProperty("socketFactory", UnixSockets.class.getName());
        for (int n = 1; n < arguments.length; n++) {
            String[] property = arguments[n].split("=", 2);
            properties.setProperty(property[0], property[1]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Main main = new Main(arguments);
        InputStreamReader input = new InputStreamReader(System.in, StandardCharsets.UTF_8);
        BufferedReader requests = new BufferedReader(input);
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = JSON.readTree(line);
            Object reply = request.has("sql") ? main.reply(request) : main.close();
            System.out.write(JSON.writeValueAsBytes(reply));
            System.out.println();
            System.out.flush();
        }
    }

    private Map<String, ?> reply(JsonNode request) throws Exception {
        String name = request.get("session").textValue();
        if (!sessions.containsKey(name)) {
            sessions.put(name, driver.open(connect()));
        }
        try {
            String sql = request.get("sql").textValue();
            return Map.of("rows", sessions.get(name).execute(sql, request.get("arguments")));
        } catch (PSQLException error) {
            ServerErrorMessage server = error.getServerErrorMessage();
            if (server == null) {
                throw error;
            }
            Map<String, String> reply = new HashMap<>();
            reply.put("sqlstate", server.getSQLState());
            reply.put("hint", server.getHint());
            reply.put("message", server.getMessage());
            return Map.of("error", reply);
        }
    }

    private Map<String, ?> close() throws Exception {
        for (Session session : sessions.values()) {
            session.close();
        }
        sessions.clear();
        return Map.of();
    }

    private Connection connect() throws SQLException {
        String url = "jdbc:postgresql:" + System.getenv("PGDATABASE");
        return DriverManager.getConnection(url, properties);
    }

    private record PgjdbcSession(Connection connection) implements Session {
        @Override
        public List<List<Object>> execute(String sql, JsonNode arguments) throws Exception {
            try (PreparedStatement statement = prepare(connection, sql, arguments)) {
                return results(statement);
            }
        }

        @Override
        public void close() throws SQLException {
            connection.close();
        }
    }

    /** Returns the statement with its arguments. */
    static PreparedStatement prepare(Connection connection, String sql, JsonNode arguments)
            throws SQLException {
        List<JsonNode> inOrder = new ArrayList<>();
        String jdbc = sql;
        if (!arguments.isEmpty()) {
            // JDBC has ? for every parameter, in the order of the statement.
            Matcher parameters = PARAMETER.matcher(sql);
            jdbc = parameters.replaceAll(parameter -> {
                inOrder.add(arguments.get(Integer.parseInt(parameter.group(1)) - 1));
                return "?";
            });
        }
        PreparedStatement statement = connection.prepareStatement(jdbc);
        try {
            for (int n = 0; n < inOrder.size(); n++) {
                bind(statement, n + 1, inOrder.get(n));
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return statement;
    }

    /** Executes the statement, and returns its rows as they are written in a reply. */
    static List<List<Object>> results(PreparedStatement statement) throws SQLException {
        try {
            return statement.execute() ? rows(statement.getResultSet()) : List.of();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static void bind(PreparedStatement statement, int n, JsonNode value)
            throws SQLException, IOException {
        switch (value.getNodeType()) {
            case NULL -> statement.setNull(n, Types.NULL);
            case BOOLEAN -> statement.setBoolean(n, value.booleanValue());
            case STRING -> statement.setString(n, value.textValue());
            case NUMBER -> {
                // An int may be an argument for integer and bigint, a long only for bigint.
                if (value.isInt()) {
                    statement.setInt(n, value.intValue());
                } else {
                    statement.setLong(n, value.longValue());
                }
            }
            case ARRAY -> {
                String type = statement.getParameterMetaData().getParameterTypeName(n);
                String[] elements = JSON.treeToValue(value, String[].class);
                Connection session = statement.getConnection();
                statement.setArray(n, session.createArrayOf(type.substring(1), elements));
            }
            case OBJECT -> {
                if (value.has("json")) {
                    statement.setString(n, value.get("json").toString());
                } else {
                    statement.setBytes(n, value.get("bytes").binaryValue());
                }
            }
            default -> throw new IllegalArgumentException(value.toString());
        }
    }

    private static List<List<Object>> rows(ResultSet result) throws SQLException, IOException {
        List<List<Object>> rows = new ArrayList<>();
        int columns = result.getMetaData().getColumnCount();
        while (result.next()) {
            List<Object> row = new ArrayList<>();
            for (int column = 1; column <= columns; column++) {
                row.add(cell(result.getObject(column)));
            }
            rows.add(row);
        }
        return rows;
    }

    /** Returns a value of a result as it is written in a reply. Jackson writes a UUID as text. */
    private static Object cell(Object value) throws SQLException, IOException {
        if (value instanceof byte[] bytes) {
            return Map.of("bytes", bytes);
        } else if (value instanceof Array array) {
            return array.getArray();
        } else if (value instanceof PGobject object) {
            boolean isJson = object.getType().startsWith("json");
            return isJson ? Map.of("json", JSON.readTree(object.getValue())) : object.getValue();
        }
        return value;
    }

    /** Connects pgJDBC to the Unix socket of the server. pgJDBC itself has only TCP. */
    public static final class UnixSockets extends SocketFactory {
        @Override
        public Socket createSocket() throws IOException {
            return new UnixSocket();
        }

        @Override
        public Socket createSocket(String host, int port) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Socket createSocket(String host, int port, InetAddress from, int fromPort) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Socket createSocket(InetAddress host, int port) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Socket createSocket(InetAddress host, int port, InetAddress from, int fromPort) {
            throw new UnsupportedOperationException();
        }
    }

    /** A Unix socket with the methods of a TCP socket that pgJDBC calls. */
    private static final class UnixSocket extends Socket {
        private final SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX);

        UnixSocket() throws IOException {}

        @Override
        public void connect(SocketAddress ignored, int timeout) throws IOException {
            Path folder = Path.of(System.getenv("PGHOST"));
            Path file = folder.resolve(".s.PGSQL." + System.getenv("PGPORT"));
            channel.connect(UnixDomainSocketAddress.of(file));
        }

        @Override
        public InputStream getInputStream() {
            return Channels.newInputStream(channel);
        }

        @Override
        public OutputStream getOutputStream() {
            return Channels.newOutputStream(channel);
        }

        @Override
        public boolean isConnected() {
            return channel.isConnected();
        }

        @Override
        public void close() throws IOException {
            channel.close();
        }

        @Override
        public void setTcpNoDelay(boolean on) {}

        @Override
        public void setKeepAlive(boolean on) {}

        @Override
        public void setSoTimeout(int timeout) {}
    }
}
