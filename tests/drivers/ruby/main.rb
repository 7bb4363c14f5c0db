# Executes statements with the gem pg. Reads requests from the standard input and writes replies to
# the standard output, as tests/drivers/README.md describes.

require "base64"
require "json"
require "pg"

BYTEA = 17
JSON_TYPES = [114, 3802].freeze
UUID_ARRAY = 2951

class Sessions
  def initialize
    @sessions = {}
  end

  def execute(request)
    session = @sessions[request[:session]] ||= connect
    arguments = request[:arguments].map { |value| argument(value) }
    { rows: rows(session.exec_params(request[:sql], arguments)) }
  rescue PG::ServerError => error
    { error: { sqlstate: error.result.error_field(PG::PG_DIAG_SQLSTATE),
               hint: error.result.error_field(PG::PG_DIAG_MESSAGE_HINT),
               message: error.result.error_field(PG::PG_DIAG_MESSAGE_PRIMARY) } }
  end

  def close
    @sessions.each_value(&:close)
    @sessions.clear
    {}
  end

  private

  def connect
    connection = PG.connect
    connection.set_notice_receiver { |_notice| }
    types = PG::BasicTypeMapForResults.new(connection)
    # The gem has no decoder for enums and for uuid. It returns their texts, with a warning for each
    # of them unless the default is set.
    types.default_type_map = PG::TypeMapAllStrings.new
    types.add_coder(PG::TextDecoder::Array.new(oid: UUID_ARRAY))
    connection.type_map_for_results = types
    connection
  end

  # Texts have no declared type, so the server finds the type of each parameter.
  def argument(value)
    case value
    in nil then nil
    in { bytes: } then { value: Base64.decode64(bytes), format: 1 }
    in { json: } then JSON.generate(json)
    in Array then PG::TextEncoder::Array.new.encode(value)
    else value.to_s
    end
  end

  def rows(result)
    types = (0...result.nfields).map { |column| result.ftype(column) }
    result.values.map { |row| row.zip(types).map { |value, type| cell(value, type) } }
  end

  def cell(value, type)
    return if value.nil?

    case type
    when BYTEA then { bytes: Base64.strict_encode64(value) }
    when *JSON_TYPES then { json: value }
    else value
    end
  end
end

sessions = Sessions.new
$stdout.sync = true
$stdin.each_line do |line|
  request = JSON.parse(line, symbolize_names: true)
  reply = request.key?(:sql) ? sessions.execute(request) : sessions.close
  puts JSON.generate(reply)
end
